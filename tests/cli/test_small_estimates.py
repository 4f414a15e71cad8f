"""The estimate of ``ptir list`` for models that fit the processor's caches, and for experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptir.cli import kept_bandwidth
from ptir.cli.bandwidth import CacheProbe
from ptir.cli.estimates import Basis, basis_of
from ptir.cli.kept_bandwidth import BANDWIDTHS, CACHED, cache_bandwidths
from ptir.runtime import catalog
from ptir.runtime.catalog import (
    IN_CACHES,
    REACHED,
    InCaches,
    Small,
    estimated_speed,
    layer_count,
    token_bytes,
)
from ptir.runtime.specs import random_checkpoint
from running import REF, Command, command

__all__ = ["command"]

WAITS = InCaches({32: 0.5}, step=1e-3, layer=1e-4)


class Probe:
    """Finds what it is told for the bytes that are read."""

    kind = "a test"
    found: float = 1e9
    made: int = 0

    def __init__(self, threads: int, nbytes: int) -> None:
        type(self).made += 1
        self.nbytes = nbytes

    def bandwidth(self) -> float:
        return self.found * (CACHED[-1] // self.nbytes)


@pytest.fixture(autouse=True)
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_bandwidth, "cache_probe", Probe)
    monkeypatch.setattr(kept_bandwidth, "probe_of", lambda target: Probe(1, CACHED[-1]))
    monkeypatch.setattr(kept_bandwidth, "usable_processors", lambda: 2)
    monkeypatch.setattr(catalog, "REACHED", {**REACHED, "ref": {32: 0.5}})
    monkeypatch.setattr(catalog, "IN_CACHES", {**IN_CACHES, "ref": WAITS})
    monkeypatch.setattr(Probe, "found", 1e9)
    monkeypatch.setattr(Probe, "made", 0)


def test_a_step_waits_for_caches_and_for_its_layers() -> None:
    small = Small(10e9, WAITS, 4)
    # 0.5 MB at half of 10 GB/s, a step and four layers
    assert 1 / estimated_speed({32: 500_000}, 1e9, {32: 0.8}, small) == pytest.approx(
        1e-4 + 1e-3 + 4e-4
    )
    # memory is read faster than caches are said to be
    assert 1 / estimated_speed({32: 500_000}, 10e9, {32: 0.8}, small) == pytest.approx(
        500_000 / 8e9 + 1.4e-3
    )
    assert 1 / estimated_speed({32: 500_000}, 1e9, {32: 0.8}) == pytest.approx(500_000 / 0.8e9)


def test_bandwidths_of_caches_are_between_those_of_neighbours() -> None:
    basis = Basis("ref", 1e9, {32: 0.5}, caches={1 << 20: 40e9, 1 << 22: 20e9}, waits=WAITS)
    between = basis.speed({32: 1 << 21}, 0)
    assert between is not None
    assert 1 / between == pytest.approx((1 << 21) / (0.5 * 30e9) + 1e-3)
    few = basis.speed({32: 1000}, 0)
    assert few is not None and 1 / few == pytest.approx(1000 / (0.5 * 40e9) + 1e-3)
    # more than the most that was measured waits for memory alone
    assert basis.speed({32: 1 << 23}, 9) == pytest.approx(0.5e9 / (1 << 23))


def test_caches_are_measured_once_and_the_greater_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache_bandwidths(REF)
    assert first == {size: 1e9 * (CACHED[-1] // size) for size in CACHED}
    assert cache_bandwidths(REF) == first and Probe.made == len(CACHED)
    monkeypatch.setattr(Probe, "found", 0.5e9)
    assert cache_bandwidths(REF, again=True) == first
    monkeypatch.setattr(Probe, "found", 2e9)
    assert cache_bandwidths(REF, again=True) == {size: 2 * one for size, one in first.items()}
    assert len(BANDWIDTHS.read()) == len(CACHED)
    assert basis_of(REF, 1e9).caches == cache_bandwidths(REF)


def test_threads_that_would_read_too_little_are_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_bandwidth, "usable_processors", lambda: 64)
    assert set(cache_bandwidths(REF)) == {1 << 24, 1 << 25, 1 << 26}


def test_a_probe_reads_all_that_it_counts() -> None:
    probe = CacheProbe(2, 1 << 20)
    assert probe.bandwidth() > 1e8 and probe.kind.startswith("2 threads reading 0.5 MB each")


def test_the_list_estimates_small_models_with_caches(command: Command) -> None:
    value = command("list", "--json").value
    (demo,) = value["models"]
    caches, size = cache_bandwidths(REF), demo["bytes_per_token"]
    low, high = size / (0.5 * caches[1 << 22]), size / (0.5 * caches[1 << 23])
    beside = WAITS.step + 6 * WAITS.layer
    assert low + beside < 1 / demo["estimated_tokens_per_second"] < high + beside
    assert ", of caches up to 64 GB/s" in command("list").err


@pytest.mark.parametrize(
    ("preset", "layers", "share"), [("mixtral-tiny", 3, 2 / 5), ("qwen3.5-moe-tiny", 4, 2 / 6)]
)
def test_of_experts_those_that_work_are_counted(preset: str, layers: int, share: float) -> None:
    checkpoint = random_checkpoint(preset, 0)
    sizes = {name: checkpoint.source.type(name).nbytes for name in checkpoint.source.names()}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    others = sum(sizes.values()) - experts - sizes["embed_tokens.weight"]
    assert experts > 0.3 * others
    assert sum(token_bytes(checkpoint).values()) == pytest.approx(
        others + share * experts, rel=0.01
    )
    assert layer_count(checkpoint) == layers
