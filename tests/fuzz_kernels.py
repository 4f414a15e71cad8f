"""Random blocks of every format of weights through kernels, each number taken out by products.

``python tests/fuzz_kernels.py --backend c --blocks 1000000``: a product with the unit matrix gives
the weight itself, in the schedules of prompts (all rows at once) and of decoding (row by row), and
so does a lookup of its outputs. All must have the numbers of ``ptir.weights.decode``, which
``fuzz_blocks.py`` compares with others. The last line counts the blocks.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.append(str(Path(__file__).parent / "weights"))

from weight_arrays import Array, as_written, random_arrays

import ptir
import ptir.functional as F
from ptir.backend.contract import Target
from ptir.capture.creation import parameter
from ptir.capture.jit import record as record_function
from ptir.capture.plan import plan_for
from ptir.params.source import ArraySource
from ptir.params.store import ParamStore
from ptir.runtime.held import in_words
from ptir.types import spec
from ptir.weights import FORMATS, WeightFormat
from ptir.weights.affine_arrays import affine_arrays, floats_of
from ptir.weights.affine_form import SCALE, AffineForm, affine_form
from ptir.weights.decode import decode
from ptir.weights.record import Numbers
from ptir_testsuite.corpus.weights import moderate

NAMES: Final = tuple(name for name, one in FORMATS.items() if affine_form(one) is not None)
BLOCKS: Final = 1_000_000
"""Of each format, in ``make prove``."""
INPUTS: Final = 256
OUTPUTS: Final = 16_384
"""Of a weight: so many blocks are compared at a time, or more where they are shorter."""
Run = Callable[..., Array]


def compared(name: str, target: Target, blocks: int, seed: int) -> int:
    """Compare random blocks; how many. Raises ``AssertionError`` with the first that differs."""
    format, rng = FORMATS[name], np.random.default_rng([seed, zlib.crc32(name.encode())])
    form, across = affine_form(format), INPUTS // format.block
    assert form is not None
    for _ in range(0, blocks, OUTPUTS * across):
        arrays = _random(format, across, rng)
        held, wanted = affine_arrays(form, arrays), decode(format, arrays)
        fits = _fits(form, held)
        prompt, step, lookup = (_program(target, form, held, rows) for rows in (INPUTS, 1, 0))
        unit = np.eye(INPUTS, dtype=np.float32)
        _same(name, "prompt", prompt(unit).T, wanted, fits)
        rows = [step(unit[k : k + 1])[0] for k in range(INPUTS)]
        _same(name, "decoding", np.stack(rows, axis=1), wanted, fits)
        _same(name, "lookup", lookup(np.arange(OUTPUTS, dtype=np.int32)), wanted, fits)
    return -(-blocks // (OUTPUTS * across)) * OUTPUTS * across


def _random(format: WeightFormat, across: int, rng: np.random.Generator) -> dict[str, Array]:
    """Random blocks whose numbers are finite: NaN times 0 would be in every sum beside it."""
    arrays = random_arrays(format, OUTPUTS, across, rng)
    if "blocks" in arrays:
        return {"blocks": as_written(format, arrays["blocks"])}
    for quantity in format.value.within():
        for name, array in arrays.items():
            if isinstance(quantity.numbers, Numbers) and not format.array(name).dtype.is_float:
                raw = array.view(np.uint8).reshape(OUTPUTS, across, -1)
                moderate(quantity.numbers, name, raw)
    return arrays


def _fits(form: AffineForm, held: dict[str, Array]) -> Array:
    """The weights whose scale can be computed with: files with others are refused when read."""
    if form.scale.super_block or form.scale.code:
        return np.ones((OUTPUTS, INPUTS), bool)
    large = np.abs(floats_of(form.scale, held[SCALE])) > form.largest_scale
    return ~np.repeat(large, INPUTS // large.shape[1], axis=1)


def _program(target: Target, form: AffineForm, held: dict[str, Array], rows: int) -> Run:
    """A product with ``rows`` rows, or without any a lookup, as something to call."""
    store = ParamStore(ArraySource(held), target)

    def body(x: Any) -> Any:
        weight = in_words(form, 1, {name: parameter(store, name) for name in held})
        return F.linear(x, weight, layout="oi") if rows else F.embedding(weight, x)

    type = spec("f32", rows, INPUTS) if rows else spec("i32", OUTPUTS)
    captured, _ = record_function(body, (type,), ("x",))
    plan = plan_for(captured.program, target)
    bound = plan.bind(captured.parameters)

    def run(x: Array) -> Array:
        (result,) = plan.run([target.backend.upload(x, target.device)], bound)
        return np.asarray(target.backend.download(result, target.device))

    return run


def _same(name: str, how: str, found: Array, wanted: Array, fits: Array) -> None:
    """Refuse numbers that differ, with the first; a sum of products has no -0."""
    differ = ~((found == wanted) | np.isnan(found) & np.isnan(wanted)) & fits
    if differ.any():
        row, place = map(int, np.argwhere(differ)[0])
        raise AssertionError(
            f"{name}: {how}: {int(differ.sum())} of {differ.size} weights differ, first that of"
            f" output {row} and input {place}: {found[row, place]!r}, and {wanted[row, place]!r} by"
            " ptir.weights.decode"
        )


def main(given: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="c", help="NAME or NAME:DEVICE")
    parser.add_argument("--type", choices=NAMES, action="append", help="default: all")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="of each format, at least")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)
    target, faults, done, names = ptir.backend(options.backend), 0, 0, options.type or NAMES
    for name in names:
        began = time.perf_counter()
        try:
            blocks = compared(name, target, options.blocks, options.seed)
        except AssertionError as error:
            faults += 1
            print(error, flush=True)
            continue
        done += blocks
        print(f"{name}: {blocks} blocks, {time.perf_counter() - began:.0f} s", flush=True)
    said = f"{faults} formats differ" if faults else "every number is that of the format"
    print(f"{done} random blocks of {len(names)} formats on {options.backend}: {said}")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
