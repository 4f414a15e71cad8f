"""Which dot products an OpenCL device is given: those that its processor lists and gets right."""

from __future__ import annotations

from typing import Any

import pytest

from ptir.backend.contract import Target
from ptir.codegen import processor
from ptir.codegen.artifact import binaries
from ptir_backend_opencl import dots, platforms

ALL = frozenset(("dot_bytes", "dot_signed_bytes", "dot_bf16"))


@pytest.fixture
def device(opencl: Target, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device under test, which has instructions, with nothing built before."""
    found: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    if found.dialect.dots != ALL:
        pytest.skip("the device has no dot instructions")
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
    binaries.forget()
    return found


def test_right_numbers_pass(device: Any) -> None:
    assert dots.tried(device, ALL) == ALL
    assert dots.tried(device, frozenset(("dot_bytes",))) == {"dot_bytes"}
    assert dots.tried(device, frozenset()) == frozenset()


@pytest.mark.slice(2)
@pytest.mark.parametrize(
    ("op", "right", "wrong"),
    [
        ("dot_bytes", "vpdpbusd", "vpdpwssd"),
        ("dot_signed_bytes", "vpdpbusd", "vpdpwssd"),
        ("dot_bf16", "vdpbf16ps", "vfmadd231ps"),
        ("by_power", "vscalefps", "vaddps"),
        ("nearest", "vcvtps2dq", "vcvttps2dq"),
        ("table_bytes", "vpshufb", "vpaddb"),
    ],
)
def test_another_instruction_is_found_out(
    device: Any, monkeypatch: pytest.MonkeyPatch, op: str, right: str, wrong: str
) -> None:
    text = dots.INSTRUCTIONS[op]
    assert right in text
    monkeypatch.setitem(dots.INSTRUCTIONS, op, text.replace(right, wrong))
    with pytest.warns(UserWarning, match="dot_bf16, dot_bytes.*other numbers.*WITHOUT=dots"):
        assert dots.tried(device, ALL) == frozenset()


def test_an_assembler_that_does_not_know_it_is_no_failure(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = dots.INSTRUCTIONS["dot_bytes"].replace("vpdpbusd", "no_such_instruction")
    monkeypatch.setitem(dots.INSTRUCTIONS, "dot_bytes", text)
    with pytest.warns(UserWarning, match="trial of them failed"):
        assert dots.tried(device, ALL) == frozenset()


def test_only_what_the_processor_lists_and_nobody_forbids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dots, "runs_here", lambda device: True)
    monkeypatch.setattr(processor, "dots", lambda: frozenset(("dot_bytes",)))
    assert dots.listed(None) == {"dot_bytes"}
    monkeypatch.setenv(platforms.WITHOUT, "dots")
    assert dots.listed(None) == frozenset()
    monkeypatch.delenv(platforms.WITHOUT)
    monkeypatch.setattr(dots, "runs_here", lambda device: False)
    assert dots.listed(None) == frozenset()
