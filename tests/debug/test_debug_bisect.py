"""Bisection: a side that computes one op otherwise is found at the first instruction of that op."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from many_families import inputs as many_inputs
from many_families import program as many_program

from ptir.capture.jit import capture
from ptir.capture.run import run_program
from ptir.checkpoint import load_archive
from ptir.cli.forward import read_program
from ptir.debug import (
    Subject,
    Tolerance,
    bisect,
    subject_of_images,
    subject_of_program,
    subject_of_texts,
    verify_layers,
)
from ptir.debug.segment import segment
from ptir.debug.subject import Runner
from ptir.errors import UsageError
from ptir.ir.program import Instruction, Program
from ptir.ops.verify import verify
from ptir.runtime import load_model
from ptir.runtime.image_model import ImageModel
from ptir.types import spec
from random_programs import COLUMNS, ROWS, random_program
from running import REF

CHILD = Path(__file__).with_name("planted_child.py")


@dataclass
class WrongRunner(Runner):
    """The reference, but instructions of one name compute what ``instead`` says."""

    name: str = ""
    instead: str = ""

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        main = program.main
        changed = tuple(map(self._changed, main.instructions))
        return super().run(replace(program, main=replace(main, instructions=changed)), inputs)

    def _changed(self, one: Instruction) -> Instruction:
        return replace(one, op=self.instead) if one.op == self.name else one


def subject(program: Program, arrays: dict[str, Any], name: str, instead: str) -> Subject:
    made = subject_of_program("random", program, arrays, REF, REF)
    return replace(made, tested=WrongRunner(REF, name=name, instead=instead))


def random_inputs(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(ROWS, COLUMNS)).astype("f4") for name in ("x", "y")}


SWAPS = {"add": "sub", "mul": "add", "tanh": "exp", "maximum": "minimum", "exp": "neg"}


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(sorted(SWAPS)))
def test_the_first_wrong_instruction_is_found(seed: int, name: str) -> None:
    """Where outputs are wrong, it is one of that op, right before it and wrong behind it."""
    program, arrays = random_program(seed), random_inputs(seed)
    given = subject(program, arrays, name, SWAPS[name])
    tolerance = Tolerance(1e-4)
    found = bisect(given, tolerance)
    if found is None:
        assert verify_layers(given, tolerance).right
        return
    assert found.instruction.op == name
    count = len(program.main.instructions)
    assert found.runs <= math.ceil(math.log2(max(2, count))) + 3
    made = found.reproducer
    assert [one.op for one in made.program.main.instructions] == [name]
    verify(made.program)
    again = run_program(made.program, made.inputs, REF)
    np.testing.assert_array_equal(again[made.output], made.wanted[made.output])
    assert not np.array_equal(made.got[made.output], made.wanted[made.output])


def test_sides_that_agree_have_no_fault() -> None:
    program, arrays = random_program(3), random_inputs(3)
    assert bisect(subject_of_program("same", program, arrays, REF, REF), Tolerance(0.0)) is None


def test_a_program_without_instructions_has_no_fault() -> None:
    program = capture(lambda x: x, spec("f32", 2))
    given = subject_of_program("nothing", program, {"x": np.ones(2, "f4")}, REF, REF)
    assert bisect(given, Tolerance(0.0)) is None and verify_layers(given, Tolerance(0.0)).right


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.data())
def test_segments_one_after_the_other_are_the_program(seed: int, data: st.DataObject) -> None:
    program = random_program(seed)
    count = len(program.main.instructions)
    cut = data.draw(st.integers(1, count - 1)) if count > 1 else 1
    values: dict[int, Any] = dict(enumerate(random_inputs(seed).values()))
    for first, last in ((0, cut), (cut, count)):
        if first == last:
            continue
        part = segment(program, first, last)
        verify(part.program)
        ports = zip(part.program.ports, part.reads, strict=True)
        arrays = {port.name: values[value] for port, value in ports}
        values.update(zip(part.gives, run_program(part.program, arrays, REF), strict=True))
    wanted = run_program(program, random_inputs(seed), REF)
    for value, array in zip(program.main.outputs, wanted, strict=True):
        # NumPy sums a transposed operand, which the whole has no copy of, in another order.
        np.testing.assert_allclose(values[value], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first, last", [(-1, 2), (2, 2), (0, 1000)])
def test_segments_of_no_instructions_are_refused(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="no instructions from"):
        segment(random_program(1), first, last)


def test_arrays_of_other_types_than_ports_are_refused() -> None:
    program = random_program(1)
    with pytest.raises(UsageError, match="no array for port 'y'"):
        subject_of_program("p", program, {"x": np.zeros((ROWS, COLUMNS), "f4")}, REF, REF)
    wrong = {name: np.zeros((ROWS, 3), "f4") for name in "xy"}
    with pytest.raises(UsageError, match=r"port 'x' takes f32\[6,20\], given f32\[6,3\]"):
        subject_of_program("p", program, wrong, REF, REF)


@pytest.mark.parametrize("name", ["random:vit-tiny", "random:bert-tiny"])
def test_a_wrong_op_is_found_in_models_that_see_or_read(name: str) -> None:
    model: Any = load_model(name, backend=REF)
    if isinstance(model, ImageModel):
        side = model.checkpoint.config["image_size"]
        pixels = np.random.default_rng(0).standard_normal((1, side, side, 3), np.float32)
        made = subject_of_images(model, model, pixels)
    else:
        made = subject_of_texts(model, model, np.array([[1, 2, 3, 4]], np.int32))
    ops = {one.op for one in made.program.main.instructions}
    swapped = next(one for one in ("add", "mul", "sub") if one in ops)
    instead = "sub" if swapped == "add" else "add"
    wrong = WrongRunner(REF, made.tested.parameters, name=swapped, instead=instead)
    found = bisect(replace(made, tested=wrong), Tolerance(1e-4))
    assert found is not None and found.instruction.op == swapped
    assert [one.op for one in found.reproducer.program.main.instructions] == [swapped]


# --- faults in the kernel generator, each planted in a process of its own ---

FAULTS = {
    "the end of a row is left out of its fold": "layer_norm",
    "attention sees one key beyond the row": "attention",
    "a cache is written one place beyond its end": "cache_update",
    "indices known at run time are taken for 0": "take",
    "a transpose takes its permutation for the inverse": "transpose",
    "padding reads the nearest element instead of the filler": "pad",
    "running folds reach back eight places of sixteen": "cumulative",
    "the first update of a place stays": "scatter_reduce",
    "gaps between elements of a window are not skipped": "reduce_window",
    "folds begin at 0, whatever they fold": "reduce_window",
    "elements after the last whole vector are not stored": "",
    "all intermediates lie at the start of the arena": "",
    "a result takes over an operand that is read later": "",
}
"""Planted faults, and the op that is wrong; where it is none's, memory or every loop is."""


@pytest.mark.slice(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_a_kernel_is_found(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "reproducer"
    environment = {**os.environ, "PTIR_REBUILD_KERNELS": "1"}
    command = (sys.executable, str(CHILD), fault, str(folder))
    made = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert made.returncode == 0, made.stderr
    about = json.loads(made.stdout)
    assert about["found"], fault
    assert FAULTS[fault] in ("", about["op"])
    assert about["runs"] <= math.ceil(math.log2(about["instructions"])) + 3
    assert about["reproducer_instructions"] <= 10 and about["kernel"]
    program = read_program(folder / "program.ptir")
    arrays = dict(load_archive(folder / "inputs.safetensors").arrays)
    wanted = load_archive(folder / "wanted.safetensors").arrays
    for number, array in enumerate(run_program(program, arrays, REF)):
        np.testing.assert_array_equal(array, wanted[f"output{number}"])


def test_the_program_of_many_families_is_right_where_nothing_is_planted() -> None:
    arrays = many_inputs()
    made = subject_of_program("many", many_program(), arrays, REF, REF)
    assert verify_layers(made, Tolerance(0.0)).right
