"""Attention whose keys are split over groups: as many parts as keys, and fewer; what is lost shows.

The tests of whole attention run here with a device of many units, so that every call is split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, close, normal, run
from test_coop_schedules import kernels
from test_opencl_families import (  # noqa: F401  collected here
    attention,
    test_a_narrow_cache_is_read_as_it_lies,
    test_a_query_that_sees_nothing_gives_zero,
    test_attention,
)

import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.creation import tensor
from ptir.capture.plan import PLANS
from ptir.codegen.expressions.expr import Apply, Coordinate, Var, constant
from ptir.codegen.families.attention import split
from ptir.codegen.schedules import tiles, tuned_tiles
from ptir.codegen.schedules.kernel import EmitContext, Kernel
from ptir.types import BOOL, I32, spec
from window_models import attended_in_steps

UNITS = 64


@pytest.fixture(autouse=True)
def many_units(opencl: Target, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A device of many units, whose groups take single blocks of 8 keys; the parts of each call."""
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    row = device.traits.device_class
    monkeypatch.setattr(device, "traits", replace(device.traits, compute_units=UNITS))
    small = replace(tiles.TILES[row], attention_block_keys=8, min_keys_per_split=8)
    monkeypatch.setitem(tiles.TILES, row, small)  # type: ignore[misc]
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
    tuned_tiles.forget()
    PLANS.clear()
    made: list[int] = []
    parts_of = split.splits_of

    def noted(site: EmitContext, groups: int, capacity: int) -> int:
        made.append(parts_of(site, groups, capacity))
        return made[-1]

    monkeypatch.setattr(split, "splits_of", noted)
    yield made
    tuned_tiles.forget()
    PLANS.clear()
    assert made and min(made) > 0


def decoded(
    target: Target, place: int, length: int | None = None, *, window: int | None = None
) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    """A step of two rows with its cache update at ``place``: found, wanted, and both caches."""
    q, new = normal(2, 4, 1, 24), normal(2, 2, 1, 24, seed=1)
    cache, length = normal(2, 2, 90, 24, seed=2), place + 1 if length is None else length
    cache[:, :, max(0, length) :] = np.nan

    def body(q: Any, new: Any, cache: Any, start: Any, here: Any, length: Any) -> Any:
        one = start * 0 + 1
        keys, values = (F.cache_update(old, new, start, one) for old in (cache, cache * 2.0))
        seen = F.attention(q, keys, values, start=here, length=length, window=window)
        return seen, keys, values

    rows = (np.array([n, 40], np.int32) for n in (place, max(0, length - 1), length))
    start, here, seen = rows
    seen[1], cache[1, :, 41:] = 41, np.nan
    found, *caches = run(target, body, q, new, cache, start, here, seen)
    wanted = [cache.copy(), cache * 2]
    for row, at in enumerate(start):
        if 0 <= at < 90:
            for each in wanted:
                each[row, :, at] = new[row, :, 0]
    right = attention(q, *wanted, here, seen, window=window)
    return found, right, np.stack(caches), tuple(wanted)  # type: ignore[return-value]


@pytest.mark.parametrize("place", [0, 7, 8, 63, 89, -1, 90, 2**31 - 1])
def test_an_entry_is_appended_by_one_of_the_parts(opencl: Target, place: int) -> None:
    length = min(max(place + 1, 0), 50) if not 0 <= place < 90 else None
    found, wanted, caches, expected = decoded(opencl, place, length)
    close(found, wanted, 1e-4)
    np.testing.assert_array_equal(caches, np.stack(expected))


@pytest.mark.parametrize("window", [3, 20, 200])
def test_a_window_is_split_where_it_lies(opencl: Target, window: int) -> None:
    found, wanted, caches, expected = decoded(opencl, 77, window=window)
    close(found, wanted, 1e-4)
    np.testing.assert_array_equal(caches, np.stack(expected))


def test_an_entry_beyond_what_is_seen_is_written_too(opencl: Target) -> None:
    for place, length in ((60, 5), (60, 0), (2, 0), (89, 33)):
        found, wanted, caches, expected = decoded(opencl, place, length)
        close(found, wanted, 1e-4)
        np.testing.assert_array_equal(caches, np.stack(expected))


def test_parts_are_combined_in_a_fixed_order(opencl: Target) -> None:
    first, *_ = decoded(opencl, 80)
    for _ in range(3):
        assert decoded(opencl, 80)[0].tobytes() == first.tobytes()


def test_infinities_and_nan_come_through_as_in_one_group(opencl: Target) -> None:
    q, k, v = normal(1, 1, 1, 8), normal(1, 1, 90, 8, seed=1), normal(1, 1, 90, 8, seed=2)
    body = lambda q, k, v, s, n: F.attention(q, k, v, start=s, length=n)  # noqa: E731
    rows = np.array([89], np.int32), np.array([90], np.int32)
    for place, bad in ((3, np.nan), (70, np.nan), (88, np.inf)):
        keys = k.copy()
        keys[0, 0, place] = bad * np.sign(q[0, 0, 0])
        assert np.isnan(run(opencl, body, q, keys, v, *rows)).all(), (place, bad)
    keys = k.copy()
    keys[0, 0, 10:80] = -1e30 * np.sign(q[0, 0, 0])  # parts without weight
    close(run(opencl, body, q, keys, v, *rows), attention(q, keys, v, *rows), 1e-4)


def test_both_kernels_are_explained_and_timed(opencl: Target) -> None:
    body = lambda q, k, s, n: F.attention(q, k, k, start=s, length=n)  # noqa: E731
    arrays = (
        normal(1, 1, 1, 8),
        normal(1, 1, 90, 8),
        np.array([89], np.int32),
        np.array([90], np.int32),
    )
    step = ptir.jit(body)
    inputs = [tensor(array, backend=opencl) for array in arrays]
    result = step(*inputs).numpy()
    (plan,) = step.plans
    explanation = plan.executable.explain()
    assert explanation is not None
    first, second = explanation.parts
    assert (first.name, second.name, first.writes) == ("attention", "attention", ())
    assert [write.nbytes for write in second.writes] == [result.nbytes]
    handles = [opencl.backend.upload(array, opencl.device) for array in arrays]
    (found,), seconds = plan.executable.timed(
        handles, lambda: opencl.backend.synchronize(opencl.device)
    )
    assert len(seconds) == 2
    np.testing.assert_array_equal(opencl.backend.download(found, opencl.device), result)


def dropped(self: Any, low: Var, high: Var) -> tuple[Var, Var]:
    first, last = SPLIT(self, low, high)
    lost = Apply(BOOL, "eq", Coordinate(I32, self.part), constant(I32, 1))
    return first, self.writer.let(Apply(I32, "select", lost, first, last))


def twice(self: Any, low: Var, high: Var) -> tuple[Var, Var]:
    """Parts 2 and 3 do the keys of parts 1 and 2, and so on."""
    before, self.part = self.part, self._named(self.part - self.part // 2 % 2, self.parts)
    found = SPLIT(self, low, high)
    self.part = before
    return found


def at_first(self: Any, what: int, heads: Any, part: Any, row: Any) -> Any:
    """Totals of the neighbour's part."""
    return LEFT(self, what, heads, part * 0 if what == 1 else part, row)


SPLIT = split.SplitAttention._stretch
LEFT = split.SplitAttention.partial_result


@pytest.mark.parametrize(
    ("name", "planted"), [("_stretch", dropped), ("_stretch", twice), ("partial_result", at_first)]
)
def test_a_part_that_is_lost_or_counts_twice_is_seen(
    opencl: Target, monkeypatch: pytest.MonkeyPatch, name: str, planted: Callable[..., Any]
) -> None:
    monkeypatch.setattr(split.SplitAttention, name, planted)
    found, wanted, *_ = decoded(opencl, 80)
    assert np.abs(found - wanted).max() > 1e-2


def test_keys_are_split_where_units_are_idle_and_the_cache_is_long(
    opencl: Target, monkeypatch: pytest.MonkeyPatch, many_units: list[int]
) -> None:
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]

    def made(batch: int, capacity: int) -> Kernel:
        cache, rows = spec("f32", batch, 2, capacity, 16), spec("i32", batch)
        body = lambda q, k, s, n: F.attention(q, k, k, start=s, length=n)  # noqa: E731
        (kernel,) = kernels(opencl, body, spec("f32", batch, 4, 1, 16), cache, rows, rows)
        return kernel

    plain = replace(
        tiles.TILES[device.traits.device_class], attention_block_keys=32, min_keys_per_split=256
    )
    monkeypatch.setitem(tiles.TILES, device.traits.device_class, plain)  # type: ignore[misc]
    tuned_tiles.forget()
    shapes = ((1, 4096), (1, 1 << 20), (16, 4096), (32, 4096), (1, 511))
    found = [made(*shape) for shape in shapes]
    assert many_units == [16, 128, 8, 1, 1]
    assert [len(kernel.launches) for kernel in found] == [2, 2, 2, 1, 1]
    assert [kernel.workgroups for kernel in found] == [32, 256, 256, 64, 2]
    assert [sum(t.nbytes for t in k.scratch) for k in found[3:]] == [0, 0]


def test_a_cache_that_slides_is_split_as_others_are(opencl: Target, many_units: list[int]) -> None:
    """Single tokens are appended by the part that reads their place, wherever a cache begins."""
    attended_in_steps(opencl, window=17, T=1)
    assert max(many_units) > 2
