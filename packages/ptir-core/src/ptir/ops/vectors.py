"""The op of vector codebooks: codes that stand for several numbers at once, as words of bytes."""

from __future__ import annotations

from functools import partial
from typing import Final

from ptir.ir.graph import Ref
from ptir.ops.classes import dtypes
from ptir.ops.fill import full
from ptir.ops.layout import broadcast_to, reshape, transpose
from ptir.ops.packing import unpacked, with_axis
from ptir.ops.record import Array, Attribute, Call, bad, define, literal, op, refusals, sample
from ptir.types import I32, U32, TensorType
from ptir.weights.words import ONES, SIGNED, VECTOR_BITS, period

_u32 = partial(Array, "u32")
_BITS_IN_WORDS: Final = f"{', '.join(map(str, VECTOR_BITS[:-1]))} or {VECTOR_BITS[-1]}"


def _codes(words: int, bits: int) -> int:
    """How many codes whole periods of words hold."""
    count, width = period(bits)
    return words // width * count


def _type(call: Call) -> TensorType:
    words, table, signs = call.types
    axis, bits = call.axis(call["axis"], words.rank), call["bits"]
    known = type(bits) is int and bits in VECTOR_BITS
    call.require(known, "bits", f"bits is {bits!r}; it must be {_BITS_IN_WORDS}")
    width, size = period(bits)[1], words.shape[axis]
    message = f"axis {axis} has {size} words; codes of {bits} bits lie in {width} at a time"
    call.require(size % width == 0, "words", message)
    fits = table.rank == 2 and min(table.shape) > 0
    message = f"table has shape {list(table.shape)}; [entries, words of each] is needed"
    call.require(fits, "table", message)
    count = _codes(size, bits) * table.shape[1]
    needed = [with_axis(words.shape, axis, 0)]
    if count % SIGNED == 0:
        needed.append(with_axis(words.shape, axis, count // SIGNED))
    wanted = " or ".join(str(list(shape)) for shape in needed)
    message = f"signs has shape {list(signs.shape)}; {wanted} is needed"
    call.require(signs.shape in needed, "signs", message)
    return TensorType(U32, with_axis(words.shape, axis, count))


def _decomposition(codes: Ref, table: Ref, signs: Ref, *, axis: int, bits: int) -> Ref:
    """Codes looked up in the table, signs spread to the bytes of words."""
    shape, rank = codes.type.shape, codes.type.rank
    count = _codes(shape[axis], bits)
    numbers = op("cast")(unpacked(codes, axis, bits, count), dtype=I32)
    order = (*range(axis + 1), rank, *range(axis + 1, rank))
    entries = transpose(op("take")(table, numbers, axis=0), permutation=order)
    found = reshape(entries, shape=with_axis(shape, axis, count * table.type.shape[1]))
    if not signs.type.shape[axis]:
        return found
    return _signed(found, signs, axis)


def _signed(words: Ref, signs: Ref, axis: int) -> Ref:
    import numpy as np

    shape, groups = words.type.shape, signs.type.shape[axis]
    spread = with_axis(shape, axis, groups, SIGNED)
    each = broadcast_to(reshape(signs, shape=with_axis(shape, axis, groups, 1)), shape=spread)
    tail = (1,) * (len(shape) - axis - 1)
    steps = np.arange(SIGNED, dtype=np.uint32).reshape(-1, *tail)
    moved = broadcast_to(op("constant")(value=literal(steps)), shape=spread)
    ones = op("and")(op("shift_right")(each, moved), full(ONES, spread, U32))
    ones = reshape(ones, shape=shape)
    flipped = op("xor")(words, op("mul")(ones, full(127, shape, U32)))
    found: Ref = op("add")(flipped, ones)
    return found


_GOOD: Final = "u32[2,3] u32[4,2] u32[2,0]"
_TABLE: Final = [[0x01020304, 0x40404141], [0x7F410140, 0x05060708], [0x40404040, 0x7F7F0102]]

unpack_vectors = define(
    "unpack_vectors",
    "codes table signs",
    dtypes=dtypes("u32"),
    attributes=(
        Attribute("axis", "the axis along which codes are packed"),
        Attribute("bits", f"bits of a code: {_BITS_IN_WORDS}"),
    ),
    rule=_type,
    reference=lambda xp, *operands, **attributes: xp.unpack_vectors(*operands, **attributes),
    decomposition=_decomposition,
    traits="quantization",
    profile="quantized",
    doc=f"""Words of the bytes that packed codes stand for in a table of vectors.

    A code is the number of a row of ``table`` [entries, words of each], which takes its place in
    the result; codes behind the last row stand for the last one. Codes of 8 bits are a stream of
    bits. Others lie in two planes, for each 32 codes of 9 bits, 16 of 10 or 8 of 12: words of their
    low bytes, then one word whose byte b has the high bits of code b of every four, one behind the
    other.

    ``signs`` has a word for each {SIGNED} words of the result, or nothing where no number is
    negated. Its bits p, p + 8, p + 16 and p + 24 are those of the bytes of word p. With them as the
    lowest bits of bytes, b, a word t of the table becomes (t xor 127 * b) + b, modulo 2**32: bytes
    of 1 to 127 are numbers above 64, and those whose bit is set become the same below it.""",
    samples=(
        sample(
            _u32([0x01020100, 0x00010200, 0x01000030]),
            _u32([[0x01020304], [0x7F410140], [0x40404040]]),
            _u32([]),
            axis=0,
            bits=12,
            gives=_u32(
                [
                    *(0x01020304, 0x7F410140, 0x40404040, 0x40404040),
                    *(0x40404040, 0x40404040, 0x7F410140, 0x01020304),
                ]
            ),
        ),
        sample(
            _u32([[0x00020100], [0xFF010001]]),
            _u32(_TABLE),
            _u32([[0x80800705], [0xFFFFFFFF]]),
            axis=1,
            bits=8,
            gives=_u32(
                [
                    [
                        *(0x01027D7C, 0x40403F41, 0x7F417F40, 0x05060708),
                        *(0x40404040, 0x7F7F0102, 0x01020304, 0x40404141),
                    ],
                    [
                        *(0x013F7F40, 0x7B7A7978, 0x7F7E7D7C, 0x40403F3F),
                        *(0x013F7F40, 0x7B7A7978, 0x40404040, 0x01017F7E),
                    ],
                ]
            ),
        ),
        sample(
            _u32([]).reshaped(0, 2),
            _u32(_TABLE),
            _u32([]).reshaped(0, 2),
            axis=0,
            bits=9,
            gives=_u32([]).reshaped(0, 2),
        ),
    ),
    bad_calls=(
        *refusals("codes table signs", dtypes("u32"), *_GOOD.split(), axis=1, bits=12),
        bad(
            "axis",
            *_GOOD.split(),
            axis=2,
            bits=12,
            message="axis 2 is not an axis of rank 2 (0 <= axis < 2)",
        ),
        bad(
            "bits",
            *_GOOD.split(),
            axis=1,
            bits=4,
            message=f"bits is 4; it must be {_BITS_IN_WORDS}",
        ),
        bad(
            "words",
            "u32[2,4]",
            *_GOOD.split()[1:],
            axis=1,
            bits=12,
            message="axis 1 has 4 words; codes of 12 bits lie in 3 at a time",
        ),
        bad(
            "table",
            "u32[2,3]",
            "u32[0,2]",
            "u32[2,0]",
            axis=1,
            bits=12,
            message="table has shape [0, 2]; [entries, words of each] is needed",
        ),
        bad(
            "signs",
            "u32[2,3]",
            "u32[4,2]",
            "u32[2,3]",
            axis=1,
            bits=12,
            message="signs has shape [2, 3]; [2, 0] or [2, 2] is needed",
        ),
    ),
)
