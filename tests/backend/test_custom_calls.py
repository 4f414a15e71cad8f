"""custom_call from end to end: who knows a target runs it, everyone else refuses the program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend import Target
from ptir.capture import call, call_multi
from ptir.capture.plan import PLANS
from ptir.checkpoint import save_archive
from ptir.errors import UnsupportedError
from ptir.ops.implementations import functional
from running import REF, Command, command
from tiny_backend import TinyBackend

__all__ = ["command"]

SCALE = "vendor.scale.v1"
UNKNOWN = r"custom_call target 'vendor.scale.v1' is unknown here on device 'numpy'"


class Vendor(TinyBackend):
    """Knows one target: the operand times ``by``, and its sum."""

    name = "vendor"

    def refusal(self, query, device):
        if query.op == "custom_call" and query.attributes["target"] != SCALE:
            return f"custom_call target {query.attributes['target']!r} is unknown here"
        return super().refusal(query, device)

    def step(self, instruction, operands, device):
        if instruction.op != "custom_call":
            return super().step(instruction, operands, device)
        result = operands[0] * np.float32(instruction.attributes["by"])
        return (result, result.sum(dtype=np.float32))[: len(instruction.types)]


VENDOR = Target(Vendor(), Vendor().devices()[0])


def scaled(x, target=SCALE):
    return call_multi("custom_call", x, target=target, results=("f32[2]", "f32[]"), by=3.0)


def test_a_backend_that_knows_the_target_runs_it():
    x = ptir.tensor([1.0, -2.0], backend=VENDOR)
    result, total = scaled(x + 1.0)
    assert (result.numpy().tolist(), float(total)) == ([6, -3], 3)
    program = ptir.capture(lambda x: scaled(x * 2.0), ptir.spec("f32", 2))
    again = ptir.parse(str(program))
    assert again == program
    found = ptir.run_program(again, {"x": np.ones(2, np.float32)}, VENDOR)
    assert [f.tolist() for f in found] == [[6, 6], 12]


@pytest.mark.parametrize("run", ["lazily", "jitted", "in a region"])
def test_others_refuse_before_anything_runs(run):
    x = ptir.tensor([1.0, -2.0], backend=REF)
    ran = REF.backend.stats(REF.device).kernels_launched

    def function(x):
        if run == "in a region":
            return F.cond(x.sum() > 0.0, lambda: scaled(F.exp(x))[0], lambda: x)
        return scaled(F.exp(x))[0]

    with pytest.raises(UnsupportedError, match=rf"ref: custom_call\(f32\[2\]\): {UNKNOWN}"):
        (ptir.jit(function) if run == "jitted" else function)(x).numpy()
    assert REF.backend.stats(REF.device).kernels_launched == ran


def test_a_target_of_another_version_is_another_target():
    x = ptir.tensor([1.0, -2.0], backend=VENDOR)
    with pytest.raises(UnsupportedError, match=r"target 'vendor.scale.v2' is unknown here"):
        scaled(x, "vendor.scale.v2")[0].numpy()


@pytest.fixture
def implementation():
    """A softmax that only the vendor's target computes: wrong on purpose, so that it shows."""

    @F.implementation("softmax", "vendor")
    def _vendor(x, *, axis):
        """Three times x."""
        types = (f"{x.type}",)
        return call("custom_call", x, target=SCALE, results=types, by=3.0)

    yield
    del functional("softmax").implementations["vendor"]
    PLANS.clear()


def test_an_implementation_may_emit_one(implementation):
    x = ptir.tensor([1.0, -2.0], backend=VENDOR)
    with ptir.overrides(softmax="force=vendor"):
        assert F.softmax(x).numpy().tolist() == [3, -6]
        with pytest.raises(UnsupportedError, match=UNKNOWN):
            F.softmax(ptir.tensor([1.0, -2.0], backend=REF)).numpy()
    assert abs(float(F.softmax(x).sum()) - 1) < 1e-6


def test_a_benchmark_leaves_out_what_cannot_run(implementation, monkeypatch, tmp_path):
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    with ptir.overrides(softmax="benchmark"):
        total = F.softmax(ptir.tensor([1.0, -2.0], backend=REF)).sum()
        assert abs(float(total) - 1) < 1e-6


def test_the_command_line_refuses_with_4(command: Command, tmp_path: Path):
    path = tmp_path / "program.ptir"
    program = ptir.capture(scaled, ptir.spec("f32", 2))
    path.write_text(str(program), encoding="utf-8")
    save_archive(tmp_path / "in", {"x": np.ones(2, np.float32)})
    done = command("forward", path, "--input", tmp_path / "in")
    assert (done.code, done.out) == (4, "")
    assert "error [PTIR-201]: ref: custom_call(f32[2]): custom_call target" in done.err
