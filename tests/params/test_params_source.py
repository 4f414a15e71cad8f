"""Sources without files: sharing, determinism, counting and clear errors."""

import numpy as np
import pytest

from ptir.errors import CheckpointError, UsageError
from ptir.params import ArraySource, RandomSource, RenamedSource
from ptir.types import BF16, spec


def test_arrays_are_shared_and_read_only() -> None:
    mine = np.arange(6, dtype=np.float32).reshape(2, 3)
    source = ArraySource({"w": mine, "b": np.zeros(3, BF16.numpy)})
    read = source.read("w")
    assert np.shares_memory(read, mine)
    assert mine.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        read[0, 0] = 1
    assert source.names() == ("w", "b")
    assert [str(source.type(n)) for n in source.names()] == ["f32[2,3]", "bf16[3]"]


def test_big_endian_arrays_come_out_native_with_their_values() -> None:
    read = ArraySource({"w": np.array([1.5, -2], ">f4")}).read("w")
    assert read.dtype == np.float32
    assert read.tolist() == [1.5, -2]


def test_reads_are_counted_by_name_and_bytes() -> None:
    source = ArraySource({"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.int8)})
    for name in ("w", "b", "w"):
        source.read(name)
    assert source.counters.bytes_read == 51
    assert source.counters.loads == {"w": 2, "b": 1}


@pytest.mark.parametrize("method", ["read", "type", "release"])
def test_unknown_names_are_refused_with_the_nearest(method: str) -> None:
    array = ArraySource({"wte.weight": np.zeros(1)})
    random = RandomSource({"wte.weight": spec("f32", 1)}, 0, lambda n, t: 1.0)
    for source in (array, random, RenamedSource(array, {"wte.weight": "wte.weight"})):
        with pytest.raises(CheckpointError, match=r"'wte.wieght' \(nearest: wte.weight; 1 known"):
            getattr(source, method)("wte.wieght")


def test_random_values_depend_on_seed_and_name_only() -> None:
    types = {"a": spec("f32", 600, 600), "b": spec("f32", 600, 600)}
    one, two = RandomSource(types, 7, lambda n, t: 0.5), RandomSource(types, 7, lambda n, t: 0.5)
    first_a, first_b = one.read("a"), one.read("b")
    assert np.array_equal(two.read("b"), first_b)
    assert np.array_equal(two.read("a"), first_a)
    assert np.array_equal(one.read("a"), first_a)
    assert not np.array_equal(first_a, first_b)
    assert not np.array_equal(RandomSource(types, 8, lambda n, t: 0.5).read("a"), first_a)


def test_random_values_are_normal_with_the_scale_asked_for() -> None:
    types = {"a": spec("f32", 600, 600), "small": spec("bf16", 3, 0), "scalar": spec("f16")}
    source = RandomSource(types, 7, lambda name, type_: 0.25 if name == "a" else 1.0)
    values = source.read("a").reshape(-1)
    assert abs(values.std() - 0.25) < 0.002
    assert abs(values.mean()) < 0.002
    assert abs(np.mean(np.abs(values) < 0.25) - 0.6827) < 0.005
    assert np.unique(values).size > 0.9 * values.size
    assert source.read("small").shape == (3, 0)
    assert source.read("scalar").dtype == np.float16
    assert source.counters.bytes_read == 4 * 600 * 600 + 2
    assert not values.flags.writeable


def test_random_sources_refuse_integers_and_negative_seeds() -> None:
    with pytest.raises(UsageError, match=r"'ids' has type i32\[2\]: must be a float"):
        RandomSource({"ids": spec("i32", 2)}, 0, lambda n, t: 1.0)
    with pytest.raises(UsageError, match="seed -1: must be >= 0"):
        RandomSource({}, -1, lambda n, t: 1.0)


def test_a_renamed_view_reads_the_same_values_under_new_names() -> None:
    base = ArraySource({"old": np.arange(3), "unused": np.zeros(1)})
    view = RenamedSource(base, {"new": "old", "tied": "old"})
    assert view.names() == ("new", "tied")
    assert np.shares_memory(view.read("new"), view.read("tied"))
    assert view.type("tied") == base.type("old")
    assert view.counters.loads == {"new": 1, "tied": 1}
    assert base.counters.loads == {"old": 2}


def test_renaming_to_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"renamed 'new': unknown parameter 'odl' \(nearest"):
        RenamedSource(ArraySource({"old": np.zeros(1)}), {"new": "odl"})
