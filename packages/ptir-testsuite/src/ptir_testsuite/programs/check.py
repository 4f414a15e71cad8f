"""One random program on a target: text round trip, every instruction, optimized and not.

The backend runs three forms: as drawn with every value an output, as drawn, and optimized. Each
instruction is judged by its oracle on the operands that the backend itself computed. The two other
forms must give the same: bit for bit where values are exact, else within the propagated bound.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptir.backend import Options
from ptir.errors import UnsupportedError
from ptir.ir.parser import parse
from ptir.ir.program import Block, Instruction, Program
from ptir.ops import OPS
from ptir.ops.verify import verify
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir.passes.pipeline import optimize
from ptir.types import TensorType, dtype_of
from ptir_testsuite.accuracy import EXACT, Terms, bound_of
from ptir_testsuite.compare import compare
from ptir_testsuite.execute import Failed, Setting
from ptir_testsuite.expected import Expected, exactly
from ptir_testsuite.fences import PATTERNS, Fences
from ptir_testsuite.floats import Array, doubles
from ptir_testsuite.oracles import ORACLES, Given, NoOracleError
from ptir_testsuite.outcomes import Outcome, Row
from ptir_testsuite.programs.draw import Drawn, drawn_program
from ptir_testsuite.programs.errors import added, handed_on
from ptir_testsuite.programs.stored import Stored


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
    drawn = drawn_program(item.seed, item.number, setting.claims, setting.terms.rounds)
    again = f"--seed {item.seed} --first {item.number} --count 1"
    return _row(item.id, drawn, setting, f"ptir-conformance programs {again}", ())


def run_stored(item: Stored, setting: Setting) -> Row:
    """Check everything about a program that is kept."""
    drawn = item.drawn(setting.terms.rounds)
    again = f"ptir-conformance replay {item.id}"
    row = _row(item.id, drawn, setting, again, tuple(sorted(item.profiles)))
    return replace(row, dtypes=item.dtypes, claimed=item.profiles <= setting.claims)


def _row(id: str, drawn: Drawn, setting: Setting, again: str, profiles: tuple[str, ...]) -> Row:
    start = time.perf_counter()
    text = str(drawn.program)
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    count = len(drawn.program.main.instructions)
    call = f"{count} instruction{'s' if count != 1 else ''}"
    row = Row(id, "program", call, (), profiles, Outcome.PASS, facts={"program": digest})
    try:
        _check(drawn, setting)
    except Failed as failed:
        message = _told(failed.message, drawn, again)
        row = replace(row, outcome=failed.outcome, phase=failed.phase, message=message)
    except UnsupportedError as error:
        row = replace(row, outcome=Outcome.UNSUPPORTED, phase="compile", message=str(error))
    return replace(row, seconds=time.perf_counter() - start)


def _told(message: str, drawn: Drawn, again: str) -> str:
    inputs = [
        f"  x{i} = {t} {a.tolist()}"
        for i, (t, a) in enumerate(zip(drawn.program.inputs, drawn.arrays, strict=True))
    ]
    shared = [f"  one buffer: {drawn.aliases}"] if drawn.aliases else []
    return "\n".join([message, str(drawn.program), *inputs, *shared, f"  again: {again}"])


def _check(drawn: Drawn, setting: Setting) -> None:
    program = drawn.program
    verify(program)
    if parse(str(program)) != program:
        raise Failed(Outcome.MISMATCH, "verify", "parse(print(p)) is another program")
    values = _every_value(drawn, setting)
    errors = _judged(program.main, values, setting)
    context = PassContext(setting.target.backend, setting.target.device)
    forms = {"as drawn": legalize(program, context), "optimized": optimize(program, context)}
    found = {name: _run(form, drawn, setting) for name, form in forms.items()}
    for name, outputs in found.items():
        for place, value in enumerate(program.main.outputs):
            _same(name, place, outputs[place], values[value], errors[value], drawn.exact[value])


def _every_value(drawn: Drawn, setting: Setting) -> list[Any]:
    """What the backend computes for every value of the program."""
    main = drawn.program.main
    whole = replace(main, outputs=tuple(range(len(main.types))))
    context = PassContext(setting.target.backend, setting.target.device)
    return _run(legalize(replace(drawn.program, main=whole), context), drawn, setting)


def _run(program: Program, drawn: Drawn, setting: Setting) -> list[Any]:
    backend, device = setting.target.backend, setting.target.device
    ports = [int(port.name[1:]) for port in program.ports]
    first = {v: group[0] for group in drawn.aliases for v in group}
    aliases = tuple(
        tuple(i for i, port in enumerate(ports) if port in group) for group in drawn.aliases
    )
    options = Options(aliases=tuple(group for group in aliases if len(group) > 1))
    try:
        executable = backend.compile(program, device, options)
        sources = [first.get(p, p) for p in ports]
        handles = {p: backend.upload(drawn.arrays[p], device) for p in dict.fromkeys(sources)}
        fences = Fences(program.main.output_types, setting.target, PATTERNS[0])
        results = executable.run([handles[p] for p in sources])
        backend.synchronize(device)
        found = [backend.download(r, device) for r in results]
        broken = fences.broken()
        after = [backend.download(handles[p], device) for p in sources]
    except UnsupportedError:
        raise
    except Exception as error:
        text = f"{error.__class__.__name__}: {error}"
        raise Failed(Outcome.ERROR, "execute", text) from error
    if broken:
        text = f"a tensor beside the results was overwritten: {broken}"
        raise Failed(Outcome.MISMATCH, "execute", text)
    for port, array in zip(ports, after, strict=True):
        if np.asarray(array).tobytes() != drawn.arrays[port].tobytes():
            raise Failed(Outcome.MISMATCH, "execute", f"input x{port} was changed by the run")
    return found


def _judged(main: Block, values: Sequence[Any], setting: Setting) -> list[Array]:
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
        expected = _expected(given)
        if expected is None:
            errors += [np.full(t.shape, np.inf) for t in instruction.types]
            continue
        _require(instruction, numbers, expected, values, setting)
        passed = handed_on(OPS[instruction.op], given, [errors[v] for v in instruction.operands])
        for one, type, error in zip(expected, instruction.types, passed, strict=True):
            bound = bound_of(OPS[instruction.op], type.dtype, setting.terms)
            errors.append(added(one, type, bound, error))
    return errors


def _expected(given: Given) -> list[Expected] | None:
    try:
        with np.errstate(all="ignore"):
            return list(ORACLES[given.op](given))
    except NoOracleError:
        return None


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
