"""LFM2, Mamba-2 and Qwen3.5, whose layers have states of one size, against Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from test_llama import REF, SMALL, assert_greedy_tokens_agree, assert_logits_agree

import ptir
from nextn_witness import Head
from ptir.models.causal import CachePositions

LFM2 = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"]}
QWEN = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
}
MAMBA = {
    "num_heads": 6,
    "head_dim": 16,
    "n_groups": 2,
    "state_size": 10,
    "conv_kernel": 3,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("lfm2", LFM2),
    "lfm2 as said": ("lfm2", {**LFM2, "block_auto_adjust_ff_dim": False, "norm_eps": 0.1}),
    "lfm2 with biases": (
        "lfm2",
        {**LFM2, "conv_bias": True, "conv_L_cache": 5, "block_multiple_of": 7},
    ),
    "lfm2 in early spelling": (
        "lfm2",
        {
            "full_attn_idxs": [0, 2],
            "block_ff_dim": 100,
            "tie_embedding": True,
            "block_ffn_dim_multiplier": 1.3,
        },
    ),
    "mamba2": ("mamba2", MAMBA),
    "mamba2 of early files, which say what Transformers never did": (
        "mamba2",
        {**MAMBA, "norm_before_gate": True},
    ),
    "mamba2, one group, tied": (
        "mamba2",
        {**MAMBA, "n_groups": 1, "use_bias": True, "tie_word_embeddings": True},
    ),
    "mamba2 without a bias of the convolution": (
        "mamba2",
        {**MAMBA, "n_groups": 6, "use_conv_bias": False, "layer_norm_epsilon": 0.1},
    ),
    "qwen3.5": ("qwen3_5_text", QWEN),
    "qwen3.5, a head each": (
        "qwen3_5_text",
        {**QWEN, "linear_num_value_heads": 2, "rms_norm_eps": 0.1, "linear_conv_kernel_dim": 2},
    ),
    "qwen3.5, tied, by an interval": (
        "qwen3_5_text",
        {
            **QWEN,
            "layer_types": None,
            "full_attention_interval": 2,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "rms_norm_eps": 1e-3,
}
"""A small epsilon makes much of the rounding of values that are near 0."""
CASES |= {
    "qwen3_next": ("qwen3_next", {**QWEN, **EXPERTS, "mlp_only_layers": [1]}),
    "qwen3_next, every other layer, as they come": (
        "qwen3_next",
        {
            **QWEN,
            **EXPERTS,
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
            "linear_num_value_heads": 6,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3.5 with experts": ("qwen3_5_moe_text", {**QWEN, **EXPERTS}),
}
LONG = 150
"""Tokens of a sequence: several chunks of the delta rule, the last one not full."""


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_logits_agree_with_transformers(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    assert_logits_agree(kind, change, tmp_path, length=LONG)


def test_time_steps_of_mamba2_stay_within_their_limit(tmp_path: Path) -> None:
    """Of a whole prompt: Transformers forgets the limit where it takes tokens one by one."""
    limit = {**MAMBA, "time_step_limit": [0.5, 0.9]}
    assert_logits_agree("mamba2", limit, tmp_path, length=LONG)


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_greedy_tokens_of_ragged_prompts_agree(
    kind: str, change: dict[str, Any], tmp_path: Path
) -> None:
    assert_greedy_tokens_agree(kind, change, tmp_path, different=15)


def test_the_text_of_a_model_that_sees_is_read(tmp_path: Path) -> None:
    text = {**SMALL, **QWEN, "tie_word_embeddings": False, "eos_token_id": 5}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
    config = transformers.Qwen3_5Config(
        text_config=text, vision_config={**vision, "out_hidden_size": SMALL["hidden_size"]}
    )
    torch.manual_seed(5)
    model = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    tokens = np.random.default_rng(1).integers(0, SMALL["vocab_size"], (1, 30))
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)).logits.numpy()
    ours = ptir.load_model(tmp_path, backend=REF)
    found = ours.forward(tokens)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_a_head_gives_what_a_layer_of_transformers_gives(tmp_path: Path) -> None:
    """Transformers leaves ``mtp.*`` out; its layer and its norms serve as the head's."""
    modules = transformers.models.qwen3_5.modeling_qwen3_5
    change = {**QWEN, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
    config = transformers.Qwen3_5TextConfig(**{**SMALL, **change}, attn_implementation="eager")
    torch.manual_seed(5)
    model = transformers.Qwen3_5ForCausalLM(config).eval()
    size, block = config.hidden_size, modules.Qwen3_5DecoderLayer(config, 1).eval()
    norms = {
        name: modules.Qwen3_5RMSNorm(size, eps=config.rms_norm_eps)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    }
    join = torch.nn.Linear(2 * size, size, bias=False)
    head = torch.nn.ModuleDict({**norms, "fc": join, "layers": torch.nn.ModuleList([block])})
    for name, one in (*head.named_parameters(), *model.named_parameters()):
        torch.nn.init.normal_(one, std=0.1 if "norm" in name else 0.2)
    stored = {f"mtp.{name}": one for name, one in head.state_dict().items()}
    model.save_pretrained(tmp_path, state_dict={**model.state_dict(), **stored})
    tokens = np.random.default_rng(1).integers(0, SMALL["vocab_size"], (1, 40))
    text = torch.from_numpy(tokens)
    with torch.no_grad():
        hidden = model.model(text).last_hidden_state
        embedded = model.model.embed_tokens(text[:, 1:])
        before = norms["pre_fc_norm_hidden"](hidden[:, :-1])
        x = join(torch.cat([norms["pre_fc_norm_embedding"](embedded), before], -1))
        places = torch.arange(x.shape[1])[None]
        turned = model.model.rotary_emb(x, places)
        mask = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)[None, None]
        x = block(x, position_embeddings=turned, attention_mask=mask, position_ids=places)
        wanted = norms["norm"](x).numpy()[0]
    tensors = {name: one.detach().numpy() for name, one in stored.items()}
    rotary = config.rope_parameters
    witness = Head(tensors, {**config.to_dict(), **rotary})
    assert_close(witness.hidden(embedded[0].numpy(), hidden[0, :-1].numpy()), wanted)
    ours = ptir.load_model(tmp_path, backend=REF)
    types = ours.module.mtp.state.types(1, 64)
    cache = tuple(ptir.tensor(np.zeros(one.shape, "f4"), backend=REF) for one in types)
    at = (ptir.tensor(np.array([n], "i4"), backend=REF) for n in (0, len(wanted)))
    places = CachePositions.of(*at, len(wanted))
    operands = (embedded, hidden[:, :-1])
    found = ours.module.mtp(
        *(ptir.tensor(one.numpy(), backend=REF) for one in operands), cache, places
    )[0]
    assert_close(found.numpy()[0], wanted)


def assert_close(found: Any, wanted: Any) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
