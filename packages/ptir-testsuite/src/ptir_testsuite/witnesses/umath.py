"""NumPy's tables of transcendental functions, graded by our op records.

The NumPy wheel carries `umath-validation-set-<function>.csv`: inputs and results as hexadecimal
bits, computed in higher precision and rounded once. A result within N ulp of the true value is at
most N representable numbers from the rounded one; N is the op record's accuracy class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ptir.backend.contract import Target
from ptir.capture import call, lower, run_program
from ptir.errors import PtirError, UnsupportedError
from ptir.ir.program import Port, Program
from ptir.ops.record import OPS, Op
from ptir.types import DTYPES, DType, TensorType
from ptir_testsuite.oracles.accuracy import bound_of
from ptir_testsuite.witnesses.report import Report, Row
from ptir_testsuite.witnesses.target import resolved

Array = np.ndarray[Any, np.dtype[Any]]

NAME: Final = re.compile(r"umath-validation-set-(?P<function>\w+)\.csv")
COLUMNS: Final = {"np.float16": "f16", "np.float32": "f32", "np.float64": "f64"}
NO_OP: Final = "no op of this name"
NO_DTYPE: Final = "dtype outside the op's record"
REFUSED: Final = "refused by the backend"
OUTSIDE: Final = "outside the accuracy class"
NO_RESULT: Final = "no result of that type"
MISSING: Final = (
    "this NumPy carries no umath-validation-set-*.csv (looked in {folder}); install a wheel from"
    " PyPI, which has numpy/_core/tests/data"
)


@dataclass(frozen=True)
class Column:
    """The rows of one function in one dtype."""

    function: str
    dtype: DType
    inputs: Array
    expected: Array


def folder() -> Path:
    """Where the NumPy that is installed keeps its tables."""
    return Path(np.__file__).parent / "_core" / "tests" / "data"


def read(path: Path) -> Iterator[Column]:
    """The columns of one table, by dtype; raises ``ValueError`` naming a line it cannot read."""
    name = NAME.fullmatch(path.name)
    if name is None:
        raise ValueError(f"{path.name} is not called umath-validation-set-<function>.csv")
    found: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
        if not line.strip() or line.startswith(("#", "dtype,")):
            continue
        dtype, *values = line.split(",")
        if dtype not in COLUMNS or len(values) != 3:
            raise ValueError(f"{path.name}:{number}: {line!r} is not dtype,input,output,ulps")
        found.setdefault(COLUMNS[dtype], []).append((int(values[0], 16), int(values[1], 16)))
    for dtype, pairs in found.items():
        element = DTYPES[dtype]
        bits = np.array(pairs, f"u{element.itemsize}").view(element.numpy)
        yield Column(name["function"], element, bits[:, 0].copy(), bits[:, 1].copy())


def run(backend: str | Target, data: Path | None = None) -> Report:
    """Grade ``backend`` by every table in ``data`` (the installed NumPy's by default)."""
    target = resolved(backend)
    where = data or folder()
    paths = sorted(where.glob("umath-validation-set-*.csv")) if where.is_dir() else []
    columns = [column for path in paths for column in read(path)]
    rows = tuple(row for column in columns for row in _rows(column, target))
    missing = "" if paths else MISSING.format(folder=where)
    return Report("umath", f"NumPy {np.__version__}", str(target), rows, missing)


def _rows(column: Column, target: Target) -> Iterator[Row]:
    case, count = f"{column.function} {column.dtype}", len(column.inputs)
    record = OPS.get(column.function)
    if record is None:
        yield Row(case, "skipped", NO_OP, count=count)
    elif column.dtype not in record.dtypes[record.operands[0]]:
        yield Row(case, "skipped", NO_DTYPE, count=count)
    else:
        try:
            found = _results(record, column, target)
        except UnsupportedError as error:
            yield Row(case, "refused", REFUSED, str(error), count)
            return
        except PtirError as error:  # of a result of another type too: core compares them
            yield Row(case, "failed", NO_RESULT, f"{type(error).__name__}: {error}", count)
            return
        yield from grade(case, column, found, bound_of(record, column.dtype).ulps)


def _results(record: Op, column: Column, target: Target) -> Array:
    type = TensorType(column.dtype, column.inputs.shape)
    block = lower(lambda x: call(record.name, x), [type], {})
    result: Array = run_program(Program(block, (Port("x"),)), {"x": column.inputs}, target)[0]
    return result


def grade(case: str, column: Column, found: Array, allowed: float) -> Iterator[Row]:
    """A row for what lies within ``allowed`` ulps of the table, and one for what does not."""
    errors = distance(found, column.expected)
    wrong = np.flatnonzero(~(errors <= allowed))
    good = len(errors) - len(wrong)
    if good:
        worst = float(errors[errors <= allowed].max())
        yield Row(case, "passed", count=good, worst=worst)
    if len(wrong):
        first = wrong[np.argmax(errors[wrong])]
        x, y, e = (a[first].item() for a in (column.inputs, found, column.expected))
        detail = f"of {x!r} is {e!r}, not {y!r}: {errors[first]:g} ulp, {allowed:g} allowed"
        yield Row(case, "failed", OUTSIDE, detail, len(wrong), float(errors[first]))


def distance(found: Array, expected: Array) -> Array:
    """Representable numbers between the two: infinite where NaN, an infinity or a zero differs."""
    steps = np.abs(_position(found) - _position(expected))
    nan = np.isnan(found) | np.isnan(expected)
    special = np.isinf(found) | np.isinf(expected) | ((found == 0) & (expected == 0))
    same = (found == expected) & (np.signbit(found) == np.signbit(expected))
    steps[special & ~same] = np.inf
    steps[nan] = np.where(np.isnan(found) & np.isnan(expected), 0.0, np.inf)[nan]
    return np.asarray(steps)


def _position(values: Array) -> Array:
    """The place of each number in the order of its format, as a long double; the zeros are 0."""
    bits = values.view(f"u{values.itemsize}")
    magnitude = (bits & (~np.zeros((), bits.dtype) >> 1)).astype(np.longdouble)
    return np.asarray(np.where(np.signbit(values), -magnitude, magnitude))
