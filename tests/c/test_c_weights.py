"""Weights of every format as kernels read them, compiled and run, against the record's decoder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent.parent / "weights"))

from weight_arrays import Array, as_written, random_arrays
from weight_kernels import nbytes, written_out

from ptir.backend.contract import Target
from ptir.types import BF16, F16, F32
from ptir.weights import FORMATS, FusedFormat, affine
from ptir.weights.decode import decode_fused
from ptir.weights.record import Grid, Run

OUTPUTS: Final = 48


def alone(format: Any) -> FusedFormat:
    return FusedFormat((Run(format, OUTPUTS),))


CASES: Final = {
    **{
        name: alone(one) for name, one in FORMATS.items() if not isinstance(one.codes.reading, Grid)
    },
    **{
        f"affine {bits} by {group}": alone(affine("any", bits, group, scale=dtype))
        for bits, group, dtype in (
            *((1, 128, F16), (2, 16, F32), (3, 12, F16), (3, 64, BF16)),
            *((4, 40, F16), (5, 32, F16), (6, 16, F32)),
        )
    },
    "fused": FusedFormat(
        tuple(Run(FORMATS[name], n) for name, n in (("Q4_K", 20), ("Q6_K", 5), ("int4", 23)))
    ),
}


def inputs_of(format: FusedFormat) -> int:
    """Two blocks of the largest, whole blocks of all."""
    return 2 * int(np.lcm.reduce([run.format.block for run in format.runs]))


def arrays_of(format: FusedFormat, rng: np.random.Generator) -> list[dict[str, Array]]:
    found = []
    for run in format.runs:
        arrays = random_arrays(run.format, run.outputs, inputs_of(format) // run.format.block, rng)
        if "blocks" in arrays:
            arrays["blocks"] = as_written(run.format, arrays["blocks"])
        found.append(arrays)
    return found


@pytest.fixture(scope="module")
def found(c: Target) -> dict[str, tuple[Array, Array]]:
    """By case: what its kernel gave, serial and 16 outputs at once; all are one source file."""
    device: Any = c.backend.opened(c.device).device  # type: ignore[attr-defined]
    texts, prepared = [device.dialect.prelude()], {}
    for number, (name, format) in enumerate(CASES.items()):
        arrays = arrays_of(format, np.random.default_rng(number))
        flat = [one for of in arrays for one in of.values()]
        inputs, sizes = inputs_of(format), [one.nbytes for one in flat]
        for wide in (False, True):
            code = written_out(format, inputs, device.dialect, wide)
            assert code.faults(1, nbytes(format, sizes, inputs)) == [], name
            kernel = f"weights{number}_{int(wide)}"
            texts.append(device.dialect.kernel(kernel, code.arguments, code.text))
            prepared[name, wide] = kernel, flat, (format.outputs, inputs)
    built = device.build("\n".join(texts))
    results = {key: launched(device, built, *one) for key, one in prepared.items()}
    return {name: (results[name, False], results[name, True]) for name in CASES}


def launched(
    device: Any, built: Any, name: str, arrays: list[Array], shape: tuple[int, ...]
) -> Array:
    result = np.full(shape, 7, np.float32)
    kernel = device.kernel(built, name, len(arrays) + 1)
    for place, array in enumerate([*arrays, result]):
        memory = device.allocate(array.nbytes)
        device.write(memory, np.ascontiguousarray(array))
        device.bind(kernel, place, memory)
        arrays = [*arrays, memory]  # kept until the kernel is done
    device.launch(kernel, 1)
    device.finish()
    device.read(memory, result)
    return result


@pytest.mark.parametrize("wide", [False, True], ids=["serial", "wide"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_read_what_the_decoder_reads(
    found: dict[str, tuple[Array, Array]], name: str, wide: bool
) -> None:
    wanted = decode_fused(
        CASES[name], arrays_of(CASES[name], np.random.default_rng(list(CASES).index(name)))
    )
    result = found[name][wide]
    assert result.shape == wanted.shape and np.isfinite(wanted).sum() > wanted.size // 2
    known = ~np.isnan(wanted)
    assert (np.isnan(result) == ~known).all()
    np.testing.assert_array_equal(result[known].view(np.uint32), wanted[known].view(np.uint32))
