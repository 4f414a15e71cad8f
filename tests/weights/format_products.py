"""Products of rows and weights in stored formats, as a model holds them: in words."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from opencl_runs import with_parameters
from weight_arrays import Array, as_written, random_arrays

import ptir.functional as F
from ptir.backend.contract import Target
from ptir.capture import call
from ptir.capture.creation import parameter
from ptir.capture.jit import record
from ptir.capture.plan import plan_for
from ptir.codegen.launching.launches import KernelProgram
from ptir.params.source import ArraySource
from ptir.params.store import ParamStore
from ptir.runtime.held import in_words
from ptir.types import spec
from ptir.weights import FORMATS
from ptir.weights.affine_arrays import affine_arrays
from ptir.weights.affine_form import AffineForm, affine_form
from ptir.weights.decode import decode

INPUTS: Final = 512


def form_of(name: str) -> AffineForm:
    """How a model holds weights of a format."""
    form = affine_form(FORMATS[name])
    assert form is not None, name
    return form


@cache
def stored(name: str, outputs: int) -> dict[str, Array]:
    """Random finite weights [outputs, INPUTS] of a format: the arrays of its record."""
    format = FORMATS[name]
    arrays = random_arrays(format, outputs, INPUTS // format.block, np.random.default_rng(7))
    if "blocks" in arrays:
        arrays["blocks"] = as_written(format, arrays["blocks"])
        return arrays
    # codes of what is no finite number lose their lowest bit of the exponent
    broken = ~np.isfinite(decode(format, arrays))
    if broken.any():
        arrays["codes"][broken] &= ~np.uint8(1 << format.codes.reading.fraction)
    return arrays


def product(target: Target, name: str, outputs: int, x: Array) -> Array:
    """``x`` [rows, INPUTS] times the transposed weight, whose parts are stored parameters."""
    form = form_of(name)
    arrays = affine_arrays(form, stored(name, outputs))

    def body(x: Any, *held: Any) -> Any:
        weight = in_words(form, 1, dict(zip(arrays, held, strict=True)))
        return call("dot_general", x, weight.dense(), lhs_contract=(1,), rhs_contract=(1,))

    return with_parameters(target, body, x, *arrays.values())


def check_products_with_ones(target: Target, name: str, outputs: int) -> None:
    """Rows of an identity matrix give the decoder's numbers, bit for bit: all at once, and alone.

    Bits of zeros are those of 0: sums begin at it.
    """
    wanted = decode(FORMATS[name], stored(name, outputs)).T + np.float32(0)
    assert np.isfinite(wanted).all() and len(np.unique(wanted)) > 4
    rows = np.eye(INPUTS, dtype=np.float32)
    taken = (*range(0, INPUTS, 61), INPUTS - 1)
    for chosen in (slice(None), *(slice(k, k + 1) for k in taken)):
        found = product(target, name, outputs, rows[chosen]) + np.float32(0)
        np.testing.assert_array_equal(found.view(np.uint32), wanted[chosen].view(np.uint32))


def launches_of_joined(target: Target, name: str, outputs: int) -> int:
    """Launches of a row times two weights joined, as products of the same rows are."""
    form, across = form_of(name), INPUTS // FORMATS[name].block
    arrays = random_arrays(FORMATS[name], outputs, across, np.random.default_rng(7))
    held = affine_arrays(form, arrays)
    parts = {f"{number}.{part}": array for number in range(2) for part, array in held.items()}
    store = ParamStore(ArraySource(parts), target)

    def body(x: Any) -> Any:
        weights = [
            in_words(form, 1, {part: parameter(store, f"{number}.{part}") for part in held})
            for number in range(2)
        ]
        return F.linear(x, F.concat_weights(weights, axis=0), layout="oi")

    captured, _ = record(body, [spec("f32", 1, INPUTS)], ["x"])
    executable = plan_for(captured.program, target).executable
    assert isinstance(executable, KernelProgram)
    return len(executable.steps)
