"""The random op: Philox4x32-10 with the flat index as counter and the key as an operand."""

from __future__ import annotations

import math
from typing import Final

from ptir.errors import UnsupportedError
from ptir.ir.graph import Ref
from ptir.ops.classes import dtypes
from ptir.ops.creation import SHAPE
from ptir.ops.fill import full, like
from ptir.ops.record import Array, Call, bad, define, op, sample
from ptir.types import U32, TensorType

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)


def _rng_bits(call: Call) -> TensorType:
    key = call.types[0]
    call.require(key.shape == (2,), "key", f"key has shape {list(key.shape)}; must be u32[2]")
    return TensorType(U32, call.integers("shape", least=0))


def _product(factor: int, words: Ref) -> tuple[Ref, Ref]:
    """High and low words of a 64-bit product, from 16-bit limbs; no step exceeds 32 bits."""

    def high(x: Ref) -> Ref:
        return op("shift_right")(x, like(16, x))

    def low(x: Ref) -> Ref:
        return op("and")(x, like(0xFFFF, x))

    def times(limb: int, x: Ref) -> Ref:
        return op("mul")(x, like(limb, x))

    upper, lower = divmod(factor, 1 << 16)
    first = op("add")(times(upper, low(words)), high(times(lower, low(words))))
    second = op("add")(times(lower, high(words)), low(first))
    top = op("add")(times(upper, high(words)), op("add")(high(first), high(second)))
    return top, times(factor, words)


def _rng_bits_decomposition(key: Ref, *, shape: tuple[int, ...]) -> Ref:
    size = math.prod(shape)
    count = -(-size // 4)
    if count > 2**32:
        raise UnsupportedError(
            f"rng_bits of {size} words has no decomposition beyond {2**34}; make fewer at a time"
        )
    lane = (count,)
    zero = full(0, lane, U32)
    words: tuple[Ref, ...] = (op("iota")(shape=lane, dtype=U32, axis=0), zero, zero, zero)
    keys = tuple(
        op("broadcast_to")(op("slice")(key, starts=(i,), limits=(i + 1,)), shape=lane)
        for i in (0, 1)
    )
    for number in range(ROUNDS):
        if number:
            steps = zip(keys, KEY_STEPS, strict=True)
            keys = tuple(op("add")(word, like(step, word)) for word, step in steps)
        words = _round(words, keys)
    columns = [op("reshape")(word, shape=(count, 1)) for word in words]
    line = op("reshape")(op("concat")(*columns, axis=1), shape=(4 * count,))
    return op("reshape")(op("slice")(line, starts=(0,), limits=(size,)), shape=shape)


def _round(words: tuple[Ref, ...], keys: tuple[Ref, ...]) -> tuple[Ref, ...]:
    left, right = (_product(m, words[i]) for m, i in zip(MULTIPLIERS, (0, 2), strict=True))
    mixed = (
        op("xor")(op("xor")(product[0], words[i]), key)
        for product, i, key in zip((right, left), (1, 3), keys, strict=True)
    )
    first, second = mixed
    return first, right[1], second, left[1]


define(
    "rng_bits",
    "key",
    attributes=[SHAPE],
    dtypes=dtypes("u32"),
    rule=_rng_bits,
    reference=lambda xp, key, **attributes: xp.rng_bits(key, **attributes),
    decomposition=_rng_bits_decomposition,
    doc="Uniform random u32 words from a key u32[2]: Philox4x32-10 with the flat index as counter. "
    "Element i (row-major) is word i % 4 of block i // 4; counter words 0 and 1 are the low and "
    "high half of the 64-bit block number, words 2 and 3 are 0. The same key always gives the "
    "same words, and a longer result starts with the shorter one.",
    traits="creation random",
    profile="rng",
    samples=[
        sample(
            Array("u32", [0, 0]),
            shape=(2, 3),
            gives=Array(
                "u32",
                [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C], [0x9B00DBD8, 0xF8E4CCA4, 0x5CB200DB]],
            ),
        ),
        sample(Array("u32", [1, 2]), shape=(), gives=Array("u32", 0x598DE3A)),
        sample(Array("u32", [3, 4]), shape=(0,), gives=Array("u32", [])),
    ],
    bad_calls=[
        bad("key", "u32[3]", shape=(2,), message="key has shape [3]; must be u32[2]"),
        bad("dtype", "i32[2]", shape=(2,), message="key has dtype i32; one of u32"),
        bad(
            "shape",
            "u32[2]",
            shape=7,
            message="shape 7 is not a tuple of integers",
        ),
        bad("arity", shape=(2,), message="0 operands given; takes key"),
    ],
)
