"""Random blocks of every type of GGUF, decoded in two ways and compared with others bit for bit.

``python tests/fuzz_blocks.py --blocks 1000000 --jobs 2``: the numbers of ``ptir.weights.decode``
are those of the package ``gguf`` (of a plain loop where that does not know the type), and so are
those of the words, scales and minima that products read. The last line counts the blocks.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parent / "weights"))

from test_weights_affine_form import dense, form_of
from weight_arrays import LOOPS, Array, as_written, random_arrays, witnessed

from ptir.weights import FORMATS
from ptir.weights.affine_arrays import affine_arrays, floats_of
from ptir.weights.affine_form import SCALE
from ptir.weights.decode import decode
from ptir.weights.gguf import GGUF

NAMES = tuple(format.name for format in GGUF)
BLOCKS = 1_000_000
"""Of each type, in ``make prove``."""
AT_ONCE = 4096
"""Blocks that are compared at a time."""


def witness(name: str) -> str:
    """Who else decodes a type."""
    return "a plain loop" if name in LOOPS else "`gguf`"


class Compared(NamedTuple):
    """How many blocks of a type were compared; of how many weights a scale is too large for words.

    Files with such scales are refused when they are read, as those with scales that are no numbers.
    """

    name: str
    blocks: int
    refused: int
    weights: int
    seconds: float


def compared(name: str, blocks: int, seed: int) -> Compared:
    """Compare random blocks of a type; raises ``AssertionError`` with the first that differs."""
    began, refused = time.perf_counter(), 0
    format, rng = FORMATS[name], np.random.default_rng([seed, zlib.crc32(name.encode())])
    for first in range(0, blocks, AT_ONCE):
        count = min(AT_ONCE, blocks - first)
        arrays = random_arrays(format, count, 1, rng)
        arrays["blocks"] = as_written(format, arrays["blocks"])
        found = decode(format, arrays)
        same_bits(name, "decode", arrays["blocks"], found, witnessed(name, arrays["blocks"]))
        refused += _words_compared(name, arrays, found)
    return Compared(name, blocks, refused, blocks * format.block, time.perf_counter() - began)


def _words_compared(name: str, arrays: dict[str, Array], wanted: Array) -> int:
    """Compare what words stand for; how many weights' scales are too large for them."""
    form = form_of(name)
    with np.errstate(all="ignore"):
        held = affine_arrays(form, arrays)
        large = np.abs(floats_of(form.scale, held[SCALE])) > form.largest_scale
        found = dense(form, held)
    refused = np.repeat(large, found.shape[1] // large.shape[1], axis=1)
    unsigned = found + np.float32(0), wanted + np.float32(0)  # a sum of products has no -0
    found, wanted = (np.where(refused, np.float32(0), one) for one in unsigned)
    same_bits(name, "words", arrays["blocks"], found, wanted)
    return int(refused.sum())


def same_bits(name: str, how: str, blocks: Array, found: Array, wanted: Array) -> None:
    """Refuse numbers that differ in a bit, with the first block in which they do."""
    differ = found.view(np.uint32) != wanted.view(np.uint32)
    if differ.any():
        row, place = map(int, np.argwhere(differ)[0])
        raise AssertionError(
            f"{name}: {how}: {int(differ.any(axis=1).sum())} of {len(blocks)} blocks differ; weight"
            f" {place} of {bytes(blocks[row]).hex()} is {found[row, place]!r}, and"
            f" {wanted[row, place]!r} by {witness(name)}"
        )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--type", choices=NAMES, action="append", help="default: all")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="of each type")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    names = given.type or NAMES
    faults, done = 0, list[Compared]()
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        runs = [pool.submit(compared, name, given.blocks, given.seed) for name in names]
        for run in as_completed(runs):
            try:
                one = run.result()
            except AssertionError as error:
                faults += 1
                print(error, flush=True)
                continue
            share = one.refused / one.weights
            print(f"{one.name}: {one.blocks} blocks, {share:.2%} refused, {one.seconds:.0f} s")
            sys.stdout.flush()
            done.append(one)
    said = f"{faults} types differ" if faults else "every bit is that of the witness"
    blocks = sum(one.blocks for one in done)
    print(f"{blocks} random blocks of {len(done)} types beside gguf {version('gguf')}: {said}")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
