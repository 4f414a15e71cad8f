"""What the pretended CuPy has the real one has too, called alike; that needs no GPU."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import fake_cupy
import pytest
from fake_cupy import FakeCupy

PRETENDED: Any = FakeCupy(None).cuda
TYPES = ("Stream", "Event", "Graph", "Device")


@pytest.fixture(scope="module")
def cuda() -> Any:
    """``cupy.cuda`` of the installed CuPy, which imports without a driver."""
    if "cuda" not in os.environ.get("PTIR_REQUIRE_BACKENDS", "").split(","):
        pytest.importorskip("cupy")
    import cupy  # type: ignore[import-untyped]

    return cupy.cuda


def counts(function: Callable[..., Any]) -> tuple[int, int]:
    """The least and the greatest number of arguments; compiled code says them in its first line."""
    said = (function.__doc__ or "").split("\n")[0]
    if said.startswith(f"{function.__qualname__}("):
        names = said[said.index("(") + 1 : said.rindex(")")].split(", ")
        must = [name for name in names if "=" not in name]
    else:
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters]
        must = [p.name for p in parameters if p.default is p.empty]
    return len(set(must) - {"self", ""}), len(set(names) - {"self", ""})


def require(real: Any, name: str, pretended: Any) -> None:
    """The real one is called as the pretended one is."""
    found = getattr(real, name)
    if not callable(pretended):
        assert found == pretended
        return
    least, most = counts(found)
    assert set(counts(pretended)) <= set(range(least, most + 1)), f"{name} takes {least} to {most}"


@pytest.mark.parametrize(
    ("module", "name"),
    [(m, name) for m in ("runtime", "driver") for name in vars(getattr(PRETENDED, m))],
)
def test_functions_and_numbers_are_the_real_ones(cuda: Any, module: str, name: str) -> None:
    pretended = getattr(getattr(PRETENDED, module), name)
    if isinstance(pretended, type):
        assert issubclass(getattr(getattr(cuda, module), name), RuntimeError)
        return
    require(getattr(cuda, module), name, pretended)


@pytest.mark.parametrize(
    ("type", "name"),
    [
        (type, name)
        for type in TYPES
        for name, value in vars(getattr(fake_cupy, type)).items()
        if inspect.isfunction(value) and (not name.startswith("_") or name == "__enter__")
    ],
)
def test_methods_are_the_real_ones(cuda: Any, type: str, name: str) -> None:
    require(getattr(cuda, type), name, getattr(getattr(fake_cupy, type), name))


@pytest.mark.parametrize("name", ["MemoryPool", "PinnedMemoryPool"])
def test_pools_are_the_real_ones(cuda: Any, name: str) -> None:
    require(getattr(cuda, name)(), "malloc", getattr(PRETENDED, name)().malloc)


def test_what_is_used_of_the_others_is_there(cuda: Any) -> None:
    require(cuda, "get_elapsed_time", PRETENDED.get_elapsed_time)
    assert "milliseconds" in cuda.get_elapsed_time.__doc__
    assert "non_blocking" in inspect.signature(cuda.Stream).parameters
    for type in (cuda.MemoryPointer, cuda.pinned_memory.PinnedMemoryPointer):
        assert hasattr(type, "ptr")
    assert issubclass(cuda.memory.OutOfMemoryError, MemoryError)
    assert cuda.runtime.CUDARuntimeError(2).status == 2
    assert cuda.UnownedMemory.__doc__.startswith(
        "UnownedMemory(intptr_t ptr, size_t size, owner, int"
    )
    assert cuda.MemoryPointer.__doc__.startswith("MemoryPointer(BaseMemory mem, ptrdiff_t offset)")
