"""Which dot products a processor says it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptir.codegen import processor


def test_features_of_the_processor_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "FILE", file)
    assert processor.dots() == frozenset()
    for flags, wanted in (
        ("avx512f avx512_vnni", {"dot_bytes"}),
        ("avx512f avx512_vnni avx512_bf16", {"dot_bytes", "dot_bf16"}),
        ("avx2 avx_vnni avx512_bf16", set()),
    ):
        file.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n")
        assert processor.dots() == wanted
