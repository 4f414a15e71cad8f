"""Blocks of GGUF in compiled kernels: words in groups of 16 and 32, with and without minima."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import ptir
from gguf_models import write
from ptir.backend.contract import Target
from ptir.checkpoint import open_checkpoint
from ptir.errors import UsageError
from ptir.runtime import prepacked
from running import REF, assert_close, llama_folder

KINDS = {
    "attn_k.weight": Kind.Q8_0,
    "attn_v.weight": Kind.Q6_K,
    "ffn_up.weight": Kind.Q4_1,
    "ffn_down.weight": Kind.Q2_K,
}
TOKENS = list(range(0, 60, 3))


FIFTHS = {
    "attn_k.weight": Kind.Q3_K,
    "attn_v.weight": Kind.Q5_1,
    "ffn_up.weight": Kind.Q5_0,
    "ffn_down.weight": Kind.Q6_K,
}
TABLES = {
    "attn_k.weight": Kind.IQ4_NL,
    "attn_v.weight": Kind.MXFP4,
    "ffn_up.weight": Kind.NVFP4,
    "ffn_down.weight": Kind.TQ2_0,
}
GRIDS = {
    "attn_k.weight": Kind.IQ1_M,
    "attn_v.weight": Kind.TQ1_0,
    "ffn_up.weight": Kind.IQ2_S,
    "ffn_down.weight": Kind.Q1_0,
}
VECTORS = {
    "attn_k.weight": Kind.IQ1_S,
    "attn_v.weight": Kind.IQ2_XS,
    "ffn_up.weight": Kind.IQ2_XXS,
    "token_embd.weight": Kind.IQ1_M,
    "output.weight": Kind.IQ2_XS,
}


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    ("kinds", "others"),
    [
        *((KINDS, Kind.Q4_K), (FIFTHS, Kind.Q5_K), (TABLES, Kind.IQ4_XS)),
        *((GRIDS, Kind.IQ3_XXS), (VECTORS, Kind.IQ3_S)),
    ],
    ids=["words", "planes", "tables", "grids", "vectors"],
)
def test_a_model_of_several_types_gives_the_logits_of_the_reference(
    tmp_path: Path, c: Target, kinds: dict[str, Kind], others: Kind
) -> None:
    """A prompt of many rows, and a token at a time."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    checkpoint = open_checkpoint(llama_folder(tmp_path, **sizes))

    def kind(name: str) -> Kind:
        return kinds.get(name.removeprefix("blk.0."), others)

    path = write(tmp_path / "m.gguf", checkpoint, kind).path
    found, wanted = ptir.load_model(path, backend=c), ptir.load_model(path, backend=REF)
    assert_close(found.forward(TOKENS), wanted.forward(TOKENS), 1e-4)
    got = found.generate(TOKENS[:5], max_tokens=8, temperature=0, ignore_eos=True).token_ids
    logits = wanted.forward(TOKENS[:5] + got)
    for step, token in enumerate(got):
        row = logits[4 + step]
        assert row[token] >= row.max() - 1e-4 * abs(row).max()


@pytest.mark.parametrize(
    ("kinds", "others"),
    [(KINDS, Kind.Q4_K), (FIFTHS, Kind.Q5_K), (TABLES, Kind.IQ4_XS), (VECTORS, Kind.IQ3_S)],
    ids=["words", "planes", "tables", "vectors"],
)
def test_fast_rounds_activations_and_nothing_else(
    tmp_path: Path, c: Target, kinds: dict[str, Kind], others: Kind
) -> None:
    """Logits lose a little beside exact ones, and about as much as the lowering's do."""
    if "dot_bytes" not in c.backend.opened(c.device).device.dialect.dots:  # type: ignore[attr-defined]
        pytest.skip("the processor has no dot product of bytes")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    checkpoint = open_checkpoint(llama_folder(tmp_path, **sizes))
    lines = dict.fromkeys(("token_embd.weight", "output.weight"), Kind.Q8_0)

    def kind(name: str) -> Kind:
        return (kinds | lines).get(name.removeprefix("blk.0."), others)

    path = write(tmp_path / "m.gguf", checkpoint, kind).path
    exact = ptir.load_model(path, backend=REF).forward(TOKENS)
    fast = ptir.load_model(path, backend=c, fast=True)
    asked = {one.target: str(one.policy) for one in fast.overrides}
    assert asked == {"quantized_linear": "force=int8"}
    lowered = ptir.load_model(path, backend=REF, overrides=asked).forward(TOKENS)
    size = np.abs(exact).max()
    lost, also = (np.abs(one - exact).max() / size for one in (fast.forward(TOKENS), lowered))
    few = np.abs(fast.forward(TOKENS[:5]) - exact[:5]).max() / size
    assert 1e-4 < lost < 0.1 and also / 3 < lost < also * 3 and few < 0.1


def test_fast_leaves_floats_beside_blocks_exact_and_says_so(tmp_path: Path, c: Target) -> None:
    if "dot_bytes" not in c.backend.opened(c.device).device.dialect.dots:  # type: ignore[attr-defined]
        pytest.skip("the processor has no dot product of bytes")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    checkpoint = open_checkpoint(llama_folder(tmp_path, **sizes))
    kinds = {"blk.0.ffn_down.weight": Kind.F32, "output.weight": Kind.BF16}
    path = write(tmp_path / "m.gguf", checkpoint, lambda name: kinds.get(name, Kind.Q4_K)).path
    said = "fast: products with weights in bf16\\+f32 stay exact; activations .* those in Q4_K"
    with pytest.warns(UserWarning, match=said):
        fast = ptir.load_model(path, backend=c, fast=True)
    assert {one.target: str(one.policy) for one in fast.overrides} == {
        "quantized_linear": "force=int8"
    }
    exact, found = ptir.load_model(path, backend=c).forward(TOKENS), fast.forward(TOKENS)
    assert 1e-4 < np.abs(found - exact).max() / np.abs(exact).max() < 0.1
    floats = Kind.F32
    path = write(tmp_path / "f.gguf", checkpoint, lambda name: floats).path
    with pytest.raises(UsageError, match="fast: weights in f32 have no dot implementation"):
        ptir.load_model(path, backend=c, fast=True)


def test_panels_of_an_earlier_process_are_mapped(
    tmp_path: Path, c: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(prepacked, "LEAST", 1)
    monkeypatch.delenv("PTIR_REBUILD_KERNELS", raising=False)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    checkpoint = open_checkpoint(llama_folder(tmp_path, **sizes))
    path = write(tmp_path / "m.gguf", checkpoint, lambda name: Kind.Q4_K).path
    first, second = ptir.load_model(path, backend=c), ptir.load_model(path, backend=c)
    assert np.array_equal(first.forward(TOKENS), second.forward(TOKENS))
    got = [one.generate(TOKENS, max_tokens=4, temperature=0).token_ids for one in (first, second)]
    assert got[0] == got[1]
    assert second.store.source.counters.bytes_read == 0
