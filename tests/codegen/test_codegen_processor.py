"""What a processor says of itself: its class, and which dot products it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptir.codegen import processor
from ptir.codegen.schedules.tiles import TILES


def test_features_of_the_processor_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "FILE", file)
    assert processor.dots() == frozenset()
    of_bytes = {"dot_bytes", "dot_signed_bytes"}
    for flags, wanted in (
        ("avx512f avx512_vnni", of_bytes),
        ("avx512f avx512_vnni avx512_bf16", of_bytes | {"dot_bf16"}),
        ("avx2 avx_vnni avx512_bf16", set()),
    ):
        text = f"processor\t: 0\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\nflags\t\t: fpu\n"
        file.write_text(text)
        assert processor.dots() == wanted
        assert processor.facts() == {"processor": "0", "flags": f"fpu {flags}"}


def test_makers_decide_whether_weights_are_fetched_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "FILE", file)
    assert processor.class_of(16) == "cpu-avx512"
    for vendor, wanted in (
        ("GenuineIntel", {16: "cpu-avx512", 8: "cpu-avx2", 4: "cpu-neon"}),
        ("AuthenticAMD", {16: "cpu-avx512-amd", 8: "cpu-avx2-amd", 4: "cpu-neon"}),
    ):
        file.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu\n")
        assert {lanes: processor.class_of(lanes) for lanes in wanted} == wanted
    assert TILES["cpu-avx512"].prefetch_bytes > TILES["cpu-avx512-amd"].prefetch_bytes == 0
    assert TILES["cpu-avx512-amd"].quantized_prefetch_bytes > 0


def test_a_vector_that_no_register_holds_gets_the_tiles_of_those_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "FILE", file)
    for flags, wanted in (("avx2 avx512f", 16), ("avx avx2 fma", 8), ("sse4_2", 4), ("asimd", 4)):
        file.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n")
        assert processor.register_lanes(16) == wanted
