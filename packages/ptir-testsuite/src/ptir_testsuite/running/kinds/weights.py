"""A weight of a format on a target: lowered, and with its parts as parameters, as a model has it.

A lookup gives the numbers that the format defines, every bit but the sign of zeros, to which
offsets of codes add; a product is held to their products in float64.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ptir.backend import Options
from ptir.errors import UnsupportedError
from ptir.ir.program import Program
from ptir.ops import OPS
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir_testsuite.corpus.profiles import names_of, profiles_of
from ptir_testsuite.corpus.weights import OUTPUTS, WeightCall
from ptir_testsuite.oracles.composites import Found
from ptir_testsuite.oracles.floats import Array, doubles
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.kinds.formulas import run_with_parameters, worst_share
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.raised import told


def weight_profiles(item: WeightCall) -> frozenset[str]:
    """Those of packed words, and of the types of scales."""
    return profiles_of(OPS["dequantize"], names_of(item.dtypes))


def run_weights(item: WeightCall, setting: Setting) -> Row:
    """Run the call in both forms and compare each with the definition."""
    start = time.perf_counter()
    profiles = weight_profiles(item)
    row = Row(item.id, "weights", item.call, item.dtypes, tuple(sorted(profiles)), Outcome.PASS)
    row = replace(row, claimed=profiles <= setting.claims)
    try:
        shares = [_judged(form, found, item) for form, found in _ran(item, setting)]
        row = replace(row, worst_share=max(shares))
    except Failed as failed:
        row = failed.ended(row, failed.message)
    except UnsupportedError as error:
        row = replace(row, outcome=Outcome.UNSUPPORTED, phase="compile", message=str(error))
    return replace(row, seconds=time.perf_counter() - start)


def expected(item: WeightCall) -> tuple[Found, Array]:
    """The product in float64, and the outputs that are looked up."""
    x, ids = item.arrays[:2]
    weight, size = item.weight(), item.magnitude()
    wide = doubles(x)
    product = Found(wide @ weight.astype(np.float64).T, np.abs(wide) @ size.T, x.shape[-1] + 2)
    return product, weight[np.clip(ids, 0, OUTPUTS - 1)]


def _ran(item: WeightCall, setting: Setting) -> Iterator[tuple[str, list[Any]]]:
    """The results of both forms, with what the form is called."""
    backend, device = setting.target.backend, setting.target.device
    inputs = tuple(replace(port, kind="input") for port in item.program.ports)
    try:
        lowered = legalize(replace(item.program, ports=inputs), PassContext(backend, device))
        yield "lowered", _results(lowered, item.arrays, setting)
        yield "with stored weights", run_with_parameters(item.program, item.arrays, setting)
    except (UnsupportedError, Failed):
        raise
    except Exception as error:
        raise Failed(Outcome.ERROR, "execute", f"{item.id}: {told('execute', error)}") from error


def _results(program: Program, arrays: list[Array], setting: Setting) -> list[Any]:
    backend, device = setting.target.backend, setting.target.device
    executable = backend.compile(program, device, Options())
    found = executable.run([backend.upload(array, device) for array in arrays])
    return [backend.download(one, device) for one in found]


def _judged(form: str, found: list[Any], item: WeightCall) -> float:
    """The worst error of the product as a share of its bound; raises ``Failed`` beyond it."""
    product, rows = expected(item)
    got = np.asarray(found[1])
    if got.shape != rows.shape or not np.array_equal(got, rows, equal_nan=True):
        worst = _first(rows, got) if got.shape == rows.shape else f": {list(got.shape)}"
        text = f"{item.call}, {form}: looked up weights are not those of the format{worst}"
        raise Failed(Outcome.MISMATCH, "compare", f"{text}\n  case {item.id}")
    return worst_share(doubles(found[0]), product, f"{item.call}, {form}", f"  case {item.id}")


def _first(wanted: Array, got: Array) -> str:
    """How many elements are wrong, and the first of them."""
    wrong = (got != wanted) & ~(np.isnan(got) & np.isnan(wanted))
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f": {int(wrong.sum())}, first {list(at)}: expected {wanted[at]:.9g}, got {got[at]:.9g}"
