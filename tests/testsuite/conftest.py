"""What the suite's tests share: settings, and a backend that is installed for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import pytest
from suite_settings import setting_of

import ptir_backend_ref
from ptir.backend import Target, registry
from ptir.ops import OPS
from ptir_testsuite.corpus.derivation import corpus
from ptir_testsuite.corpus.sweeps import sweeps
from ptir_testsuite.running import items
from ptir_testsuite.running.execute import Setting
from ptir_testsuite.running.kinds.refusals import refusals

FEW: Final = (
    "abs",
    "add",
    "arg_min",
    "composite",
    "dot_general",
    "maximum",
    "mul",
    "reshape",
    "rsqrt",
    "select",
)


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


@cache
def _of_few_ops(_: object) -> tuple[Any, ...]:
    ops = [OPS[name] for name in FEW]
    return (*corpus(ops), *sweeps(ops), *refusals(ops))


@pytest.fixture(scope="module")
def few_ops() -> Iterator[None]:
    """What is derived of records is derived of a few ops.

    For tests of what is done with a corpus, however large: a whole one takes seconds to derive, and
    half a second each time that words select from it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "_derived", _of_few_ops)
        yield
