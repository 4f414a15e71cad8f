"""Results beside what a formula gives in float64, and programs whose weights are parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir.capture.plan import Parameter, plan_for
from ptir.ir.program import Program
from ptir.params.source import ArraySource
from ptir.params.store import ParamStore
from ptir_testsuite.oracles.composites import FIXED, Found
from ptir_testsuite.oracles.floats import FORMATS, Array
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.outcomes import Outcome


def shares_of(found: Array, expected: Found) -> tuple[Array, Array, Array]:
    """The error of every element as a share of its bound, the errors, and the bounds."""
    single = FORMATS["f32"]
    steps = (FIXED + expected.roundings) * single.unit
    bound = steps * expected.magnitude + (expected.magnitude > 0) * FIXED * single.tiny
    nearest = expected.result.astype(np.float32)  # infinite beyond the largest f32
    error = np.where(found == nearest, 0.0, np.abs(found - expected.result))
    error = np.where(np.isnan(found) & np.isnan(expected.result), 0.0, error)
    share = np.where(error == 0, 0.0, error / bound)
    return np.where(np.isnan(share), np.inf, share), error, bound


def worst_share(found: Array, expected: Found, what: str, behind: str) -> float:
    """The worst error of elements, at least one, as a share of its bound.

    Raises ``Failed`` beyond it, with ``what`` was computed in front and lines ``behind``.
    """
    with np.errstate(all="ignore"):
        share, error, bound = shares_of(found, expected)
    at = tuple(int(i) for i in np.unravel_index(int(share.argmax()), share.shape))
    if share[at] > 1:
        text = (
            f"{what}: wrong in {int((share > 1).sum())} of {share.size} elements\n"
            f"  worst element {list(at)}: expected {expected.result[at]:.9g}, got"
            f" {found[at]:.9g}; error {error[at]:.3g}, bound {bound[at]:.3g}\n{behind}"
        )
        raise Failed(Outcome.MISMATCH, "compare", text)
    return float(share[at])


def run_with_parameters(program: Program, arrays: list[Array], setting: Setting) -> list[Any]:
    """The results of a program that core compiles with parameters of a store."""
    target = setting.target
    given = list(zip(program.ports, arrays, strict=True))
    store = ParamStore(ArraySource({p.name: a for p, a in given if p.kind == "parameter"}), target)
    plan = plan_for(program, target)
    held = plan.bind({name: Parameter(store, name) for name in store.source.names()})
    inputs = [target.backend.upload(a, target.device) for p, a in given if p.kind == "input"]
    return [target.backend.download(result, target.device) for result in plan.run(inputs, held)]
