"""What the suite's tests share: settings, and a backend that is installed for one test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from suite_settings import setting_of

import ptir_backend_ref
from ptir.backend import Target, registry
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
