"""One random program on a target: text round trip, every instruction, optimized and not.

The backend runs three forms: as drawn with every value an output, as drawn, and optimized. Each
instruction is judged by its oracle on the operands that the backend itself computed. The two other
forms must give the same: bit for bit where values are exact, else within the propagated bound.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptir.backend import Executable
from ptir.errors import UnsupportedError
from ptir.ir.program import Block, Instruction
from ptir.ops import OPS
from ptir.ops.reading import parse
from ptir.ops.verify import verify
from ptir.types import TensorType, dtype_of
from ptir_testsuite.corpus.programs import Drawn, drawn_program, exact_of
from ptir_testsuite.corpus.stored import Stored
from ptir_testsuite.oracles import Given
from ptir_testsuite.oracles.accuracy import EXACT, Terms, bound_of
from ptir_testsuite.oracles.expected import Expected, exactly
from ptir_testsuite.oracles.floats import Array, doubles
from ptir_testsuite.oracles.propagation import added, handed_on
from ptir_testsuite.running.compare import compare
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.judge import evaluated
from ptir_testsuite.running.kinds.forms import WHOLE, Form, compiled, forms_of, outputs
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.owners import with_owners

Built = Sequence[tuple[Form, Executable]]
"""The forms of a program, compiled."""


@dataclass(frozen=True)
class RandomProgram:
    """Program ``number`` of ``seed``; what it holds depends on the claims of the backend."""

    seed: int
    number: int

    @property
    def id(self) -> str:
        """How the program is named in reports, and drawn again."""
        return f"program-{self.seed}-{self.number}"


def run_program(item: RandomProgram, setting: Setting) -> Row:
    """Draw the program and check everything about it."""
    return _drawn_row(item, _drawn(item, setting), setting)


def run_programs(items: Sequence[RandomProgram], setting: Setting) -> Iterator[Row]:
    """Like ``run_program`` for each; the backend compiles all of them together.

    Where it cannot, each is compiled alone, so that the fault is found at the one that has it.
    """
    start = time.perf_counter()
    drawn = [_drawn(item, setting) for item in items]
    fault = ""
    built: list[Built | None] = [None] * len(items)
    try:
        forms = [forms_of(one, setting) for one in drawn]
        made = iter(compiled([form for each in forms for form in each], setting))
        built = [[(form, next(made)) for form in each] for each in forms]
    except UnsupportedError as error:
        fault = str(error)
    except Failed as failed:
        fault = failed.message
    share = (time.perf_counter() - start) / len(items)
    rows = (_drawn_row(i, d, setting, b) for i, d, b in zip(items, drawn, built, strict=True))
    timed = [replace(row, seconds=row.seconds + share) for row in rows]
    if fault and all(row.outcome is Outcome.PASS for row in timed):
        beside = [item.id for item in items[1:]]
        text = f"each compiles alone; together with {', '.join(beside)}: {fault}"
        facts = {**timed[0].facts, "beside": beside}
        timed[0] = replace(
            timed[0], outcome=Outcome.ERROR, phase="compile", message=text, facts=facts
        )
    yield from timed


def run_stored(item: Stored, setting: Setting) -> Row:
    """Check everything about a program that is kept."""
    row = _row(item.id, item.drawn(), setting, tuple(sorted(item.profiles)))
    return replace(row, dtypes=item.dtypes, claimed=item.profiles <= setting.claims)


def _drawn(item: RandomProgram, setting: Setting) -> Drawn:
    return drawn_program(item.seed, item.number, setting.claims)


def _drawn_row(
    item: RandomProgram, drawn: Drawn, setting: Setting, built: Built | None = None
) -> Row:
    return _row(item.id, drawn, setting, (), built)


def _row(
    id: str,
    drawn: Drawn,
    setting: Setting,
    profiles: tuple[str, ...],
    built: Built | None = None,
) -> Row:
    start = time.perf_counter()
    row = Row(id, "program", id, (), profiles, Outcome.PASS, facts={"program": digest_of(drawn)})
    try:
        _check(drawn, setting, built)
    except Failed as failed:
        row = failed.ended(row, _told(failed.message, drawn, setting.again(row)))
    except UnsupportedError as error:
        row = replace(row, outcome=Outcome.UNSUPPORTED, phase="compile", message=str(error))
    row = with_owners(row, (instruction.op for instruction in drawn.program.main.instructions))
    return replace(row, seconds=time.perf_counter() - start)


def digest_of(drawn: Drawn) -> str:
    """A digest of the program's text: what its row says was run."""
    return hashlib.blake2b(str(drawn.program).encode(), digest_size=6).hexdigest()


def _told(message: str, drawn: Drawn, again: str) -> str:
    inputs = [
        f"  x{i} = {t} {a.tolist()}"
        for i, (t, a) in enumerate(zip(drawn.program.inputs, drawn.arrays, strict=True))
    ]
    shared = [f"  one buffer: {drawn.aliases}"] if drawn.aliases else []
    return "\n".join([message, str(drawn.program), *inputs, *shared, f"  again: {again}"])


def _check(drawn: Drawn, setting: Setting, built: Built | None) -> None:
    program = drawn.program
    verify(program)
    if parse(str(program)) != program:
        raise Failed(Outcome.MISMATCH, "verify", "parse(print(p)) is another program")
    if built is None:
        forms = forms_of(drawn, setting)
        built = list(zip(forms, compiled(forms, setting), strict=True))
    found = {form.name: outputs(form, made, drawn, setting) for form, made in built}
    judged_forms(drawn, found, setting)


def judged_forms(drawn: Drawn, found: Mapping[str, Sequence[Any]], setting: Setting) -> None:
    """Refuse what forms of a program gave: op by op, and then the others beside that."""
    program, values = drawn.program, found[WHOLE]
    errors = judged_values(program.main, values, setting)
    exact = exact_of(program, setting.terms.rounds)
    for name, results in found.items():
        if name != WHOLE:
            compared(name, program.main, results, values, errors, exact)


def compared(
    name: str,
    main: Block,
    results: Sequence[Any],
    values: Sequence[Any],
    errors: Sequence[Array],
    exact: Sequence[bool],
) -> None:
    """Refuse the outputs of a form that differ from the values which the op-by-op form gave."""
    for place, value in enumerate(main.outputs):
        _same(name, place, results[place], values[value], errors[value], exact[value])


def judged_values(main: Block, values: Sequence[Any], setting: Setting) -> list[Array]:
    """Judge every instruction on the backend's own operands; the errors of all values."""
    errors = [np.zeros(t.shape) for t in main.inputs]
    for numbers, instruction in main.numbered():
        given = Given(
            instruction.op,
            tuple(values[v] for v in instruction.operands),
            tuple(main.types[v] for v in instruction.operands),
            instruction.attributes,
            instruction.types,
            instruction.regions,
        )
        expected = evaluated(given)
        if expected is None:
            errors += [np.full(t.shape, np.inf) for t in instruction.types]
            continue
        _require(instruction, numbers, expected, values, setting)
        passed = handed_on(OPS[instruction.op], given, [errors[v] for v in instruction.operands])
        for one, type, error in zip(expected, instruction.types, passed, strict=True):
            bound = bound_of(OPS[instruction.op], type.dtype, setting.terms)
            errors.append(added(one, type, bound, error))
    return errors


def _require(
    instruction: Instruction,
    numbers: Sequence[int],
    expected: Sequence[Expected],
    values: Sequence[Any],
    setting: Setting,
) -> None:
    for value, one, type in zip(numbers, expected, instruction.types, strict=True):
        bound = bound_of(OPS[instruction.op], type.dtype, setting.terms)
        fault = compare(values[value], one, type, bound, setting.terms).fault
        if fault is not None:
            text = (
                f"value %{value} = {instruction.op} is wrong in {fault.count} of {fault.size}"
                f" elements; worst {list(fault.index)}: expected {fault.expected}, got"
                f" {fault.actual}; {fault.error}"
            )
            raise Failed(Outcome.MISMATCH, "compare", text)


def _same(name: str, place: int, found: Any, value: Any, error: Array, exact: bool) -> None:
    """Refuse an output that differs from the value which the op-by-op form gave."""
    if found.dtype.kind in "biu" and np.isinf(error).any():
        return  # it follows approximate values in steps: what it must be is not known
    text = f"output {place} {name} differs from the same value computed op by op"
    if found.shape != value.shape or found.dtype != value.dtype:
        raise Failed(Outcome.MISMATCH, "compare", f"{text}: {found.dtype} {found.shape}")
    if found.dtype.kind in "biu" or exact:
        type = TensorType(dtype_of(value), value.shape)
        fault = compare(found, exactly(value), type, EXACT, Terms()).fault
        if fault is not None:
            worst = f"at {list(fault.index)}: {fault.actual}, op by op {fault.expected}"
            raise Failed(Outcome.MISMATCH, "compare", f"{text}: {worst}")
        return
    with np.errstate(all="ignore"):
        off = np.abs(doubles(found) - doubles(value))
        wrong = (off > 2 * error) & np.isfinite(error) & np.isfinite(doubles(value))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        worst = f"at {list(at)}: {found[at]}, op by op {value[at]}, bound {2 * error[at]:.3g}"
        raise Failed(Outcome.MISMATCH, "compare", f"{text}: {worst}")
