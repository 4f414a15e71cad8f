"""What all tests share: the repository, the corpus, and that parity tests wait to be asked for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import gate
import units
from corpus_slices import ByOp

REPOSITORY = Path(__file__).resolve().parent.parent

# examples take what they take: no test asserts a time, least of all on a machine that others use
hypothesis.settings.register_profile("ptir", deadline=None)
hypothesis.settings.load_profile("ptir")


def pytest_configure(config: pytest.Config) -> None:
    """Which tests run, and which of them together, are plugins of their own."""
    config.pluginmanager.register(gate, "gate")
    config.pluginmanager.register(units, "units")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests/parity unread unless `-m parity` asks for it: its modules import torch."""
    in_parity = REPOSITORY / "tests" / "parity" in (collection_path, *collection_path.parents)
    return True if in_parity and config.option.markexpr != "parity" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whatever lies in tests/parity, so that no file there can forget to."""
    for item in items:
        if REPOSITORY / "tests" / "parity" in item.path.parents:
            item.add_marker("parity")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing that is collected is garbage, and no later search for it goes through all of that."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def cases() -> ByOp:
    """The conformance suite's corpus by op."""
    return ByOp()


@pytest.fixture
def frozen_heap() -> None:
    """What earlier tests left is not looked through whenever this one collects garbage.

    A worker that has derived a corpus holds millions of objects, and a script of lifetimes collects
    garbage dozens of times: 70 s of a run that takes one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels neither kept on disk nor taken from it, as in a conformance run."""
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return REPOSITORY
