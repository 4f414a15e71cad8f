"""What a level 1 backend takes by default: its ops, on the element types of its profiles."""

from __future__ import annotations

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend import Interpreter, Target
from ptir.backend.contract import Device, OpQuery
from ptir.ir.attributes import Attributes
from ptir.ops.profiles import profiles_of_dtypes
from ptir.types import DTYPES, parse_type
from tiny_backend import ONE, TinyBackend


class Adder(TinyBackend):
    name = "adder"
    ops = frozenset(("add",))


class WideAdder(Adder):
    claims = frozenset(("core", "f64"))


class OneDevice(TinyBackend):
    devices = Interpreter.devices


def refusal(
    backend: TinyBackend, op: str, operands: str, result: str = "", **given: str
) -> str | None:
    types = tuple(parse_type(text) for text in operands.split())
    results = (parse_type(result),) if result else types[:1]
    return backend.refusal(OpQuery(op, Attributes(given), types, results), backend.devices()[0])


def test_without_ops_everything_but_composites_is_taken() -> None:
    assert refusal(TinyBackend(), "sort", "f64[2]") is None
    assert refusal(TinyBackend(), "composite", "f32[2]", name="x") == "composites are lowered"


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_ops_on_claimed_element_types_are_taken(dtype: str) -> None:
    unclaimed = profiles_of_dtypes([DTYPES[dtype]])
    assert (not unclaimed) == (dtype in ("bool", "i32", "u32", "f32"))
    reason = f"the profile {min(unclaimed)} is not claimed" if unclaimed else None
    assert refusal(Adder(), "add", f"{dtype}[2] {dtype}[2]") == reason
    assert refusal(Adder(), "mul", "f32[2] f32[2]") == "mul is not among the ops of the backend"


def test_a_claimed_profile_opens_its_element_types() -> None:
    assert refusal(WideAdder(), "add", "f64[2] f64[2]") is None
    assert refusal(WideAdder(), "add", "f32[2] f32[2]", "f64[2]") is None
    assert refusal(Adder(), "add", "f32[2] f32[2]", "f64[2]") == "the profile f64 is not claimed"


@pytest.mark.parametrize("op", ["constant", "cond", "while", "scan"])
def test_what_core_runs_is_taken_on_the_same_element_types(op: str) -> None:
    assert refusal(Adder(), op, "f32[2]") is None
    assert refusal(Adder(), op, "f16[2]") == "the profile f16 is not claimed"


def test_composites_are_lowered_whatever_the_ops() -> None:
    assert refusal(Adder(), "composite", "f32[2]", name="add") == "composites are lowered"


def test_there_is_one_device_that_ranks_with_the_reference() -> None:
    assert OneDevice().devices() == (Device(0, "tiny", "reference"),)


def test_a_reusable_operand_may_be_a_broadcast_view() -> None:
    """Nobody reads its memory afterwards, and many of its elements share one place."""
    seen: dict[str, tuple[frozenset[int], tuple[int, ...]]] = {}

    class Noting(TinyBackend):
        def prepare(self, instruction, device, reusable):
            run = super().prepare(instruction, device, reusable)

            def noted(*operands):
                seen[instruction.op] = reusable, operands[0].strides
                return run(*operands)

            return noted

    program = ptir.capture(lambda x: F.exp(F.exp(x).broadcast_to((4, 3))), ptir.spec("f32", 3))
    ptir.run_program(program, {"x": np.zeros(3, "f4")}, Target(Noting(), ONE[0]))
    assert seen["exp"] == (frozenset({0}), (0, 4))
