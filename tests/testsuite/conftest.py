"""What the suite's tests share: settings, and a backend that is installed for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from few import derived_of_few_ops
from suite_settings import setting_of

import ptir_backend_ref
from ptir.backend import Target, registry
from ptir_testsuite.running import items
from ptir_testsuite.running.execute import Setting


@pytest.fixture
def setting() -> Setting:
    """The reference backend held to its claims."""
    return setting_of(ptir_backend_ref.backend)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a backend the one that every name means."""

    def install(backend) -> None:
        monkeypatch.setattr(registry, "get", lambda name: Target(backend, backend.devices()[0]))

    return install


@pytest.fixture(scope="module")
def few_ops() -> Iterator[None]:
    """What is derived of records is derived of a few ops.

    For tests of what is done with a corpus, however large: a whole one takes seconds to derive, and
    half a second each time that words select from it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "_derived", derived_of_few_ops)
        yield
