"""ONNX's own node tests, imported as programs, run on a backend and graded by our rules.

Each case is a small model with inputs and the outputs that ONNX's reference gives. Inputs that
say a shape, an axis or the like count as static: the program is built for the case's values.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptir.backend.contract import Target
from ptir.capture import Tensor, run_program
from ptir.capture.trace import Tracing, symbol
from ptir.errors import PtirError, TypeRuleError, UnsupportedError
from ptir.ir.graph import Ref, freeze
from ptir.ir.program import Port, Program
from ptir.types import TensorType, dtype_of
from ptir_testsuite.witnesses.enclosure import enclose
from ptir_testsuite.witnesses.grade import disagreement
from ptir_testsuite.witnesses.principles import principle
from ptir_testsuite.witnesses.report import Report, Row
from ptir_testsuite.witnesses.spans import Unbounded
from ptir_testsuite.witnesses.target import resolved

if TYPE_CHECKING:
    from onnx.backend.test.case.test_case import TestCase

Array = np.ndarray[Any, np.dtype[Any]]
REFUSED: Final = "refused by the backend"
DISAGREES: Final = "result differs"
EXPLAINED: Final = "differs on principle"
STALE: Final = "principle is stale"


@dataclass(frozen=True)
class Imported:
    """A case as a program: its inputs by port name, and what must come out."""

    program: Program
    inputs: dict[str, Array]
    expected: tuple[Array, ...]


def available() -> str:
    """Why the witness cannot be heard, or nothing."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        return "onnx is not installed: pip install 'ptir-testsuite[onnx]'"
    return ""


@cache
def cases() -> tuple[TestCase, ...]:
    """Every node case of the installed onnx; its generators warn, which is their business."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


def run(backend: str | Target, select: str | None = None) -> Report:
    """Every case, or those whose names match the pattern ``select``, on ``backend``."""
    target = resolved(backend)
    missing = available()
    if missing:
        return Report("onnx", "not installed", str(target), (), missing)
    import onnx

    chosen = [case for case in cases() if select is None or fnmatch.fnmatch(case.name, select)]
    partial = "" if select is None else f"only cases that match {select!r}"
    rows = tuple(run_case(case, target) for case in chosen)
    return Report("onnx", f"onnx {onnx.__version__}", str(target), rows, partial)


def run_case(case: TestCase, target: Target) -> Row:
    """One case: imported, run and graded, or why not."""
    from ptir_testsuite.witnesses.onnx_import import NotImported, Reason

    try:
        imported = import_case(case)
    except NotImported as reason:
        return Row(case.name, "skipped", str(reason.reason), str(reason))
    except TypeRuleError as error:
        if getattr(error, "label", "") in ("dtype", "target"):
            return Row(case.name, "skipped", str(Reason.DTYPE), _first_line(error))
        return Row(case.name, "failed", DISAGREES, _first_line(error))
    try:
        found = run_program(imported.program, imported.inputs, target)
    except UnsupportedError as error:
        return Row(case.name, "refused", REFUSED, _first_line(error))
    except PtirError as error:
        return Row(case.name, "failed", DISAGREES, f"{type(error).__name__}: {_first_line(error)}")
    try:
        wrong = verdict(imported, found)
    except Unbounded as error:
        wrong = f"no bound is known: {error}"
    why = principle(case.name)
    if why:
        return Row(case.name, "explained", EXPLAINED, why) if wrong else stale(case.name)
    return Row(case.name, "failed", DISAGREES, wrong) if wrong else Row(case.name, "passed")


def stale(name: str) -> Row:
    """A case that agrees although a principle says that it differs."""
    return Row(name, "failed", STALE, "it agrees: take it off the table in witness/principles.py")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def verdict(imported: Imported, found: Sequence[Array]) -> str:
    """How the results disagree with what ONNX expects, or nothing; see ``grade``."""
    spans, decided = enclose(imported.program.main, list(imported.inputs.values()))
    wrong = (
        disagreement(x, e, None if decided or span.exact else span)
        for x, e, span in zip(found, imported.expected, spans, strict=True)
    )
    return next((text for text in wrong if text), "")


def import_case(case: TestCase) -> Imported:
    """The program of a case; raises ``NotImported`` or ``TypeRuleError``."""
    from ptir_testsuite.witnesses.onnx_import import NotImported, Reason, Scope

    assert case.model is not None and case.data_sets is not None
    graph = case.model.graph
    feeds, expected = case.data_sets[0]
    given = [i for i in graph.input if i.name not in {x.name for x in graph.initializer}]
    named = dict(_arrays(zip(given, feeds, strict=False)))
    wanted = dict(_arrays(zip(graph.output, expected, strict=False)))
    symbols = {name: symbol(type_of(array), name) for name, array in named.items()}
    opset = {o.domain: o.version for o in case.model.opset_import}
    with Tracing():
        scope = Scope(opset, list(symbols.values()), list(named.values()))
        scope.values |= {name: Tensor(ref) for name, ref in symbols.items()}
        outputs = scope.graph(graph)
    if len(outputs) != len(wanted):
        raise NotImported(Reason.NOT_ATTEMPTED, "an output has no value")
    used = [n for n, r in symbols.items() if needed(outputs, r)]
    block = freeze([output.ref for output in outputs], [symbols[n] for n in used])
    inputs = {n: named[n] for n in used}
    return Imported(Program(block, tuple(map(Port, used))), inputs, tuple(wanted.values()))


def needed(outputs: Sequence[Tensor], ref: Ref) -> bool:
    """Whether outputs depend on a source."""
    from ptir.ir.graph import reachable

    return ref.node in reachable([output.ref for output in outputs])


def _arrays(pairs: Any) -> Iterator[tuple[str, Array]]:
    """Names and arrays of graph inputs or outputs; raises ``NotImported`` for other values."""
    import onnx

    from ptir_testsuite.witnesses.onnx_import import NotImported, Reason, to_array
    from ptir_testsuite.witnesses.onnx_import.table import element

    for info, value in pairs:
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            raise NotImported(Reason.SEQUENCES, kind)
        wanted = element(info.type.tensor_type.elem_type)
        array = to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
        if dtype_of(array) != wanted:
            raise NotImported(Reason.NOT_ATTEMPTED, f"{info.name} is {array.dtype}, not {wanted}")
        yield info.name, array


def type_of(array: Array) -> TensorType:
    """The type of an array."""
    return TensorType(dtype_of(array), tuple(array.shape))
