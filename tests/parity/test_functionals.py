"""Functionals against PyTorch and transformers over a table of shapes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as reference
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_interleaved
from transformers.models.llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import ptir.functional as F
from functional.evaluate import f32, i32, run

SHAPES = [(16,), (1, 16), (5, 16), (2, 3, 16), (2, 1, 4, 16), (0, 16)]
ATTENTION = {
    "one": ((1, 1, 1, 8), (1, 1, 1, 8)),
    "heads": ((2, 4, 5, 8), (2, 4, 5, 8)),
    "groups": ((2, 8, 6, 16), (2, 2, 6, 16)),
    "one group": ((1, 6, 3, 4), (1, 1, 3, 4)),
    "long": ((1, 2, 70, 32), (1, 1, 70, 32)),
}
USES = pytest.mark.parametrize("use", [None, {"attention": "online", "softmax": "online"}])


def close(found, wanted, rtol=2e-5, atol=2e-6) -> None:
    np.testing.assert_allclose(found, wanted.float().numpy(), rtol=rtol, atol=atol)


def torched(*arrays):
    return [torch.from_numpy(a) for a in arrays]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", ["io", "oi"])
def test_linear(shape, layout) -> None:
    x, weight, bias = f32(*shape), f32(7, 16, seed=1), f32(7, seed=2)
    stored = weight if layout == "oi" else np.ascontiguousarray(weight.T)
    close(
        run(F.linear, x, stored, bias, layout=layout), reference.linear(*torched(x, weight, bias))
    )


def test_linear_with_bf16_weights() -> None:
    x, weight = f32(3, 16), f32(7, 16, seed=1).astype(ml_dtypes.bfloat16)
    wide = torch.from_numpy(weight.view(np.int16)).view(torch.bfloat16).float()
    close(run(F.linear, x, weight, layout="oi"), reference.linear(torch.from_numpy(x), wide))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-5, 0.1])
def test_norms(shape, epsilon) -> None:
    x, weight, bias = f32(*shape, scale=3), f32(16, seed=1), f32(16, seed=2)
    tx, tw, tb = torched(x, weight, bias)
    wanted = reference.layer_norm(tx, (16,), tw, tb, epsilon)
    close(run(F.layer_norm, x, weight, bias, epsilon=epsilon), wanted)
    close(run(F.rms_norm, x, weight, epsilon=epsilon), reference.rms_norm(tx, (16,), tw, epsilon))


@pytest.mark.parametrize("shape", SHAPES)
def test_activations(shape) -> None:
    x, up = f32(*shape, scale=4), f32(*shape, seed=1)
    tx, tu = torched(x, up)
    close(run(F.gelu, x), reference.gelu(tx))
    close(run(F.gelu, x, approximate="tanh"), reference.gelu(tx, approximate="tanh"))
    close(run(F.silu, x), reference.silu(tx))
    close(run(F.swiglu, x, up), reference.silu(tx) * tu)


@USES
@pytest.mark.parametrize("shape", [(5,), (3, 50), (2, 40, 3)])
def test_softmax_along_every_axis(shape, use) -> None:
    x = f32(*shape, scale=5)
    for axis in range(-len(shape), len(shape)):
        close(run(F.softmax, x, axis=axis, use=use), reference.softmax(torch.from_numpy(x), axis))


@USES
@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_attention(case, causal, scale, use) -> None:
    query, key = ATTENTION[case]
    q, k, v = f32(*query), f32(*key, seed=1), f32(*key, seed=2)
    wanted = reference.scaled_dot_product_attention(
        *torched(q, k, v), is_causal=causal, scale=scale, enable_gqa=True
    )
    close(run(F.attention, q, k, v, causal=causal, scale=scale, use=use), wanted)


@USES
@pytest.mark.parametrize("window", [None, 1, 3])
def test_attention_over_a_cache_equals_a_mask(window, use) -> None:
    q, k, v = f32(3, 4, 5, 8), f32(3, 2, 40, 8, seed=1), f32(3, 2, 40, 8, seed=2)
    start, length = i32(0, 9, 35), i32(5, 14, 40)
    position = start[:, None, None] + np.arange(5)[:, None]
    key = np.arange(40)
    mask = (key < length[:, None, None]) & (key <= position)
    if window is not None:
        mask &= key > position - window
    wanted = reference.scaled_dot_product_attention(
        *torched(q, k, v), attn_mask=torch.from_numpy(mask[:, None]), enable_gqa=True
    )
    options = {"start": start, "length": length, "window": window}
    close(run(F.attention, q, k, v, use=use, **options), wanted)


@pytest.mark.parametrize("shape", [(1, 1, 1, 8), (2, 4, 6, 16), (1, 2, 3, 64)])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_rope_in_halves(shape, theta) -> None:
    x, D = f32(*shape), shape[-1]
    positions = (np.arange(shape[0] * shape[2]) * 11).reshape(shape[0], -1).astype(np.int32)
    config = LlamaConfig(
        hidden_size=D,
        num_attention_heads=1,
        head_dim=D,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    tx, at = torched(x, positions)
    cosine, sine = LlamaRotaryEmbedding(config)(tx, at.long())
    wanted, _ = apply_rotary_pos_emb(tx, tx, cosine, sine)
    close(run(F.rope, x, positions, theta=theta), wanted, atol=5e-5)


def test_rope_interleaved() -> None:
    x = f32(2, 3, 4, 8)
    positions = np.array([[0, 1, 2, 3], [7, 8, 9, 30]], np.int32)
    angles = positions[..., None] * 10000.0 ** (-np.arange(0, 6, 2) / 6)
    sine, cosine = torched(np.sin(angles), np.cos(angles))
    tx = torch.from_numpy(x).transpose(1, 2)
    turned = apply_interleaved(tx[..., :6], sine, cosine)
    wanted = torch.cat([turned, tx[..., 6:]], dim=-1).transpose(1, 2)
    found = run(F.rope, x, positions, layout="interleaved", rotary=6)
    close(found, wanted, atol=1e-5)


def test_embedding() -> None:
    table, ids = f32(9, 4), i32(0, 8, 3, 3).reshape(2, 2)
    wanted = reference.embedding(torch.from_numpy(ids).long(), torch.from_numpy(table))
    close(run(F.embedding, table, ids), wanted, rtol=0, atol=0)


def test_repetition_penalty() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits, ids = f32(2, 9), np.array([[0, 3, 3], [8, 1, 0]])
    seen = np.zeros((2, 9), bool)
    np.put_along_axis(seen, ids, True, axis=1)
    tids, tlogits = torched(ids, logits)
    wanted = RepetitionPenaltyLogitsProcessor(1.3)(tids, tlogits)
    close(run(F.repetition_penalty, logits, seen, penalty=1.3), wanted)
