"""One row again, told in full: the call, its rule, inputs, what is expected and what came.

Nothing but the id is needed: the item and its inputs are derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from ptir.backend import Options
from ptir.backend.interpreter import query_of
from ptir.ir.program import Program
from ptir.ops import OPS
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.composites import CompositeCall
from ptir_testsuite.corpus.edited import EditedProgram
from ptir_testsuite.corpus.models import ModelRun
from ptir_testsuite.corpus.programs import Drawn, drawn_program
from ptir_testsuite.corpus.stored import Stored
from ptir_testsuite.corpus.sweeps import Sweep
from ptir_testsuite.corpus.weights import WeightCall
from ptir_testsuite.oracles.accuracy import bound_of
from ptir_testsuite.oracles.composites import by_formula
from ptir_testsuite.oracles.floats import doubles
from ptir_testsuite.running.compare import show
from ptir_testsuite.running.execute import Setting, has_way_around
from ptir_testsuite.running.items import Item
from ptir_testsuite.running.judge import expectations
from ptir_testsuite.running.kinds.lifetime import Lifetime
from ptir_testsuite.running.kinds.lifetime import told as lifetime_told
from ptir_testsuite.running.kinds.models import told as model_told
from ptir_testsuite.running.kinds.programs import RandomProgram
from ptir_testsuite.running.kinds.refusals import Refusal
from ptir_testsuite.running.kinds.sweeps import told as sweep_told
from ptir_testsuite.running.kinds.weights import expected as weights_expected
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.raised import named, trace
from ptir_testsuite.running.workers import Order, run_in_processes

SHOWN: Final = 64  # elements of a tensor
LOST: Final = (Outcome.CRASH, Outcome.TIMEOUT)


def replay(
    item: Item, setting: Setting, order: Order, timeout: float, most: int = SHOWN
) -> tuple[Row, list[str]]:
    """The item's row, run in a process of its own, and everything about it as lines of text.

    What the backend gives is computed once more here, unless that ended the process.
    """
    (row,) = run_in_processes([item], order, 1, timeout)
    runs = row.outcome not in (*LOST, Outcome.UNSUPPORTED)
    lines = list(_told(item, setting if runs else None, setting, most))
    outcome = f"{row.outcome.value} [{row.phase}]" if row.phase else row.outcome.value
    lines += [f"outcome: {outcome}", *(f"  {line}" for line in row.message.splitlines())]
    if not set(row.trace) <= set(lines):
        lines += ["raised in, innermost last:", *row.trace]
    if row.worst_ulp is not None or row.worst_share is not None:
        share, ulp = row.worst_share, row.worst_ulp
        text = f"{share:.3%} of its bound" if share is not None else f"{ulp:.3g} ULP"
        lines.append(f"worst error: {text}")
    return row, lines


def _told(item: Item, runs: Setting | None, setting: Setting, most: int) -> Iterator[str]:
    if isinstance(item, Refusal):
        yield from _refusal(item)
    elif isinstance(item, RandomProgram):
        yield from _program(item, runs, setting, most)
    elif isinstance(item, Stored):
        yield f"a program that failed once: {item.note}"
        yield from _checked(item.drawn(), runs, most)
    elif isinstance(item, ModelRun):
        yield from model_told(item)
    elif isinstance(item, Lifetime):
        yield from lifetime_told(item)
    elif isinstance(item, Sweep):
        yield from sweep_told(item)
    elif isinstance(item, CompositeCall):
        yield from _composite(item, runs, most)
    elif isinstance(item, WeightCall):
        yield from _weights(item, runs, most)
    elif isinstance(item, EditedProgram):
        yield from ("text:", *_indented(item.text))
    else:
        yield from _case(item, runs, setting, most)


def _case(case: Case, runs: Setting | None, setting: Setting, most: int) -> Iterator[str]:
    yield f"call: {case.call}"
    yield f"case: {case.id}, {case.origin}; {case.form}, {case.layout} host arrays"
    bounds = [f"{t}: {bound_of(OPS[case.op], t.dtype, setting.terms)}" for t in case.results]
    meaning = OPS[case.op].doc.splitlines()[0]
    yield f"rule: {'; '.join(bounds)} (docs/reference/accuracy.md); {meaning}"
    yield from ("program:", *_indented(str(case.program)))
    yield from _arrays("input", case.arrays, case.types, most)
    oracle = expectations(case, case.arrays)
    expected = [e.values for e in oracle] if oracle else [c.numpy() for c in case.gives]
    source = "oracle" if oracle else "sample's literal"
    yield from _arrays(f"expected ({source})", expected, case.results, most)
    if runs is not None:
        program, told = _way(case, runs)
        yield from told
        yield from _got(runs, program, case.arrays, case.form == "one buffer", most)


def _way(case: Case, setting: Setting) -> tuple[Program, Sequence[str]]:
    """What core makes of the case for a backend that refuses its op, and what to say of it."""
    backend, device = setting.target.backend, setting.target.device
    program = case.program
    try:
        refusal = backend.refusal(query_of(program.main, program.main.instructions[0]), device)
        if not isinstance(refusal, str) or not has_way_around(case):
            return program, ()
        program = legalize(program, PassContext(backend, device))
    except Exception as error:  # noqa: BLE001  what a backend raises is what is told
        return case.program, (f"refusal raised {named(error)}", *trace(error))
    return program, (f"run by its decomposition ({refusal}):", *_indented(str(program)))


def _refusal(item: Refusal) -> Iterator[str]:
    yield f"call: {item.text}"
    yield f"rule: it breaks {item.call.label!r}; the builder and the verifier must refuse it"
    yield f"expected: TypeRuleError whose first line ends with: {item.call.message}"


def _composite(item: CompositeCall, runs: Setting | None, most: int) -> Iterator[str]:
    arrays = item.arrays()
    program = item.program(arrays)
    operands = ", ".join(map(str, program.inputs))
    yield f"call: {item.name}({operands}) {dict(item.row[1])}"
    yield "rule: the formula in float64, within as many roundings of f32 as it says"
    yield from ("program:", *_indented(str(program)))
    yield from _arrays("input", arrays, program.inputs, most)
    with np.errstate(all="ignore"):
        wide = [doubles(a) if a.dtype.kind not in "biu" else a for a in arrays]
        expected = by_formula(item.name, wide, item.row[1])
    for one in expected:
        yield f"expected (formula): {_values(one.result, str, most)}"
    if runs is not None:
        context = PassContext(runs.target.backend, runs.target.device)
        yield from _got(runs, legalize(program, context), arrays, False, most)


def _weights(item: WeightCall, runs: Setting | None, most: int) -> Iterator[str]:
    yield f"call: {item.call}, and rows of the weight"
    yield "rule: the numbers that the format defines, but for the sign of zeros; products within"
    yield "  roundings of f32"
    yield from ("program:", *_indented(str(item.program)))
    yield from _arrays("input", item.arrays, item.program.inputs, most)
    product, rows = weights_expected(item)
    yield f"expected (float64): {_values(product.result, str, most)}"
    yield f"expected (the format): {_values(rows, str, most)}"
    if runs is not None:
        context = PassContext(runs.target.backend, runs.target.device)
        yield from _got(runs, legalize(item.program, context), item.arrays, False, most)


def _program(
    item: RandomProgram, runs: Setting | None, setting: Setting, most: int
) -> Iterator[str]:
    drawn = drawn_program(item.seed, item.number, setting.claims)
    within = ", ".join(sorted(setting.claims))
    yield f"program {item.number} of seed {item.seed}, drawn within {within}"
    yield from _checked(drawn, runs, most)


def _checked(drawn: Drawn, runs: Setting | None, most: int) -> Iterator[str]:
    yield "rule: every instruction by its oracle; as drawn, optimized and op by op must agree"
    yield from _indented(str(drawn.program))
    yield from _arrays("input", drawn.arrays, drawn.program.inputs, most)
    if runs is not None:
        context = PassContext(runs.target.backend, runs.target.device)
        yield from _got(runs, legalize(drawn.program, context), drawn.arrays, False, most)


def _got(
    setting: Setting, program: Program, arrays: Sequence[Any], one_buffer: bool, most: int
) -> Iterator[str]:
    backend, device = setting.target.backend, setting.target.device
    aliases = (tuple(range(len(program.inputs))),) if one_buffer else ()
    names = [int(port.name[1:]) for port in program.ports]
    try:
        executable = backend.compile(program, device, Options(aliases=aliases))
        handles = [
            backend.upload(arrays[n], device) for n in ([0] * len(names) if one_buffer else names)
        ]
        results = executable.run([handles[0]] * len(names) if one_buffer else handles)
        backend.synchronize(device)
        found = [np.asarray(backend.download(r, device)) for r in results]
    except Exception as error:  # noqa: BLE001  what a backend raises is what is told
        yield f"got: {named(error)}"
        yield from trace(error)
        return
    yield from _arrays("got", found, program.main.output_types, most)


def _arrays(what: str, arrays: Sequence[Any], types: Sequence[Any], most: int) -> Iterator[str]:
    for number, array in enumerate(arrays):
        type = types[number] if number < len(types) else None
        if type is not None and tuple(array.shape) == type.shape:
            written = partial(show, dtype=type.dtype)
            yield f"{what} {number}: {type} {_values(array, written, most)}"
        else:
            yield f"{what} {number}: {array.dtype}{list(array.shape)} {_values(array, str, most)}"


def _values(array: Any, written: Callable[[Any], str], most: int) -> str:
    flat = np.asarray(array).reshape(-1)
    more = f", ... {flat.size - most} more" if flat.size > most else ""
    return f"[{', '.join(written(v) for v in flat[:most])}{more}]"


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}" for line in text.splitlines())
