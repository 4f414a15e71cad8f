"""Llama and its relatives on an OpenCL device: the reference's tokens, in few kernels."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.backend.contract import Target
from ptir.cli.explain import kernels_per_layer, ops_elsewhere
from ptir.runtime.explain import explain_decode
from running import REF, llama_folder

PROMPTS = [[5, 9, 33, 70, 12, 12, 8], [96], [*range(3, 40)]]
"""Unequal rows, one longer than any tile."""
STORAGE: list[dict[str, Any]] = [{}, {"dtype": "bf16"}, {"quant": "int8"}, {"quant": "int4"}]


def names(value: dict[str, Any]) -> str:
    return "-".join(map(str, value.values())) or "plain"


RELATIVES: list[dict[str, Any]] = [
    {"num_attention_heads": 6, "head_dim": 16, "model_type": "mistral", "sliding_window": 9},
    {"num_key_value_heads": 1, "model_type": "qwen2", "head_dim": 24},
]


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    ("config", "options"),
    [*(({}, options) for options in STORAGE), *((config, {}) for config in RELATIVES)],
    ids=names,
)
def test_tokens_are_the_reference_tokens(
    opencl: Target, config: dict[str, Any], options: dict[str, str], tmp_path: Path
) -> None:
    folder = llama_folder(tmp_path, hidden_size=64, **config)
    found, wanted = (
        ptir.load_model(folder, backend=target, **options).generate_batch(
            PROMPTS, max_tokens=20, ignore_eos=True
        )
        for target in (opencl, REF)
    )
    assert [one.token_ids for one in found] == [one.token_ids for one in wanted]
    assert len({token for one in wanted for token in one.token_ids}) > 8


def test_logits_of_the_preset_are_the_reference_logits(opencl: Target) -> None:
    here, there = (
        ptir.load_model("random:llama-tiny", backend=target).forward(PROMPTS[2])
        for target in (opencl, REF)
    )
    np.testing.assert_allclose(here, there, rtol=1e-3, atol=1e-5 * np.abs(there).max())


@pytest.mark.slice(1)
@pytest.mark.parametrize("quant", [None, "int4"])
def test_a_layer_is_five_kernels_and_nothing_runs_elsewhere(
    opencl: Target, quant: str | None
) -> None:
    model = ptir.load_model("random:llama-tiny", backend=opencl, quant=quant)
    report = explain_decode(model, 8, 1)
    assert kernels_per_layer(report) == 5
    assert ops_elsewhere(report) == 0
    assert report.counted.bytes_uploaded == 0 and report.counted.host_syncs == 0


def live(target: Target) -> int:
    """The live bytes once everything that nobody holds is gone."""
    gc.collect()
    target.backend.synchronize(target.device)
    stats = target.backend.memory_stats(target.device)
    assert stats is not None
    return stats.live_bytes


def test_joined_weights_are_resident_once(opencl: Target, tmp_path: Path) -> None:
    """Neither the projections nor their joined form stay beside the packed weights."""
    wide = {"hidden_size": 128, "intermediate_size": 1024, "num_key_value_heads": 4}
    folder = llama_folder(tmp_path, **wide)
    before = live(opencl)
    model = ptir.load_model(folder, backend=opencl)
    model.generate([5], max_tokens=2, ignore_eos=True)
    names = model.store.source.names()
    stored = sum(model.store.type(name).nbytes for name in names)
    gates = sum(model.store.type(name).nbytes for name in names if "gate" in name or "up" in name)
    assert gates > stored / 2
    assert stored <= live(opencl) - before < 1.2 * stored
