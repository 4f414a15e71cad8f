"""Creation ops against independent witnesses: struct, Python integers, Random123's vectors."""

import struct

import numpy as np
import pytest

from ptir.ops import numerics as xp
from ptir.ops.record import literal
from ptir.types import DTYPES

MASK = 2**32 - 1
# kat_vectors of Random123 for philox4x32-10: counter, key, result
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text):
    return [int(word, 16) for word in text.split()]


def scalar_philox(counter, key):
    """The paper's round on Python integers, one block at a time."""
    c, k = list(counter), list(key)
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (right >> 32) ^ c[1] ^ k[0],
            right & MASK,
            (left >> 32) ^ c[3] ^ k[1],
            left & MASK,
        ]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, expected):
    lanes = tuple(np.array([word, word], np.uint64) for word in words(counter))
    result = xp.philox4x32(lanes, tuple(words(key)))
    assert [word.tolist() for word in result] == [[word, word] for word in words(expected)]
    assert scalar_philox(words(counter), words(key)) == words(expected)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (5,), (2, 3, 7), (0,), (3, 0)])
def test_rng_bits_element_i_is_word_i_mod_4_of_block_i_div_4(shape):
    key = [0xDEADBEEF, 0x80000001]
    result = xp.rng_bits(np.array(key, np.uint32), shape=shape)
    expected = [
        scalar_philox([i // 4, 0, 0, 0], key)[i % 4] for i in range(int(np.prod(shape, dtype=int)))
    ]
    assert (result.dtype, result.shape) == (np.uint32, shape)
    assert result.reshape(-1).tolist() == expected


def test_block_numbers_beyond_32_bits_enter_counter_word_1(monkeypatch):
    start = 2**32 - 1
    arange = np.arange
    monkeypatch.setattr(np, "arange", lambda n, dtype: arange(start, start + n, dtype=dtype))
    result = xp.rng_bits(np.array([1, 2], np.uint32), shape=(8,))
    blocks = scalar_philox([MASK, 0, 0, 0], [1, 2]) + scalar_philox([0, 1, 0, 0], [1, 2])
    assert result.tolist() == blocks


def test_rng_keys_that_differ_in_either_word_give_unrelated_bits():
    draws = [
        xp.rng_bits(np.array(key, np.uint32), shape=(4096,)) for key in ([0, 0], [1, 0], [0, 1])
    ]
    for index, first in enumerate(draws):
        for second in draws[index + 1 :]:
            flipped = int(np.bitwise_count(first ^ second).sum())
            assert abs(flipped - 4096 * 16) < 1000  # five standard deviations are 905


@pytest.mark.parametrize("name", ["i8", "u8", "i32", "u32", "i64", "u64", "f16", "bf16", "f32"])
def test_iota_counts_along_its_axis_only(name):
    result = xp.iota(shape=(2, 3, 4), dtype=DTYPES[name], axis=1)
    assert result.dtype == DTYPES[name].numpy
    assert result.tolist() == [[[j] * 4 for j in range(3)] for _ in range(2)]
    assert result.flags.writeable and result.flags.c_contiguous


def test_iota_wraps_in_narrow_integers_and_rounds_once_in_floats():
    assert xp.iota(shape=(300,), dtype=DTYPES["i8"], axis=0)[255:257].tolist() == [-1, 0]
    assert xp.iota(shape=(260,), dtype=DTYPES["bf16"], axis=0)[257:].tolist() == [256, 258, 260]


@pytest.mark.parametrize("bits", [0x7FC00001, 0xFF800001, 0x80000000, 0x00000001])
def test_constant_keeps_every_bit_of_nan_zero_and_subnormals(bits):
    value = np.frombuffer(struct.pack("<I", bits), np.float32).reshape(())
    result = xp.constant(value=literal(value))
    assert (result.shape, int(result.view(np.uint32))) == ((), bits)
