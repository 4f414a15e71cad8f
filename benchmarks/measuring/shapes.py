"""Models of the families of 2026 as GGUF files of random weights: their keys and tensors.

What each file says is what llama.cpp's loader wants (``src/models``); sizes are those of the models
that people run. gpt-oss has few of its layers, and as much smaller a vocabulary, so that its parts
keep their shares of a token's time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from ptir.checkpoint.gguf import Outgoing, write_gguf

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
CHUNK: Final = 1 << 24
"""Numbers that are drawn at once."""
SPREAD: Final = 0.02
"""The deviation of a matrix's numbers."""
CONTEXT: Final = 4096


@dataclass(frozen=True)
class Shapes:
    """A model: its architecture, the keys behind that prefix, and the shapes of its tensors.

    ``sharp`` is the middle of the weights that norms of queries and keys have: scores that are not
    divided by the root of a head's size are as large as others with less than 1.
    """

    architecture: str
    keys: Mapping[str, Any]
    tensors: Mapping[str, Shape]
    sharp: float = 1.0

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.tensors["token_embd.weight"][0]


def _ffn(width: int, inner: int) -> dict[str, Shape]:
    return {
        "ffn_gate.weight": (inner, width),
        "ffn_up.weight": (inner, width),
        "ffn_down.weight": (width, inner),
    }


def _attention(width: int, queries: int, keys: int) -> dict[str, Shape]:
    return {
        "attn_q.weight": (queries, width),
        "attn_k.weight": (keys, width),
        "attn_v.weight": (keys, width),
        "attn_output.weight": (width, queries),
    }


def _model(layers: list[dict[str, Shape]], **outside: Shape) -> dict[str, Shape]:
    """Tensors outside of layers, whose names end in ``.weight``, and those of each layer."""
    found = {f"{name}.weight": shape for name, shape in outside.items()}
    for number, layer in enumerate(layers):
        found |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
    return found


def qwen35(layers: int = 24, vocabulary: int = 248320) -> Shapes:
    """Qwen 3.5 0.8B: three layers of the delta rule to each of attention, one embedding."""
    width, inner, heads, groups, head = 1024, 3584, 8, 2, 256
    linear, each, taps = 16, 128, 4
    mixed, values = 3 * linear * each, linear * each
    common = {
        "attn_norm.weight": (width,),
        "post_attention_norm.weight": (width,),
        **_ffn(width, inner),
    }
    full = {
        **common,
        **_attention(width, heads * head, groups * head),
        "attn_q.weight": (2 * heads * head, width),  # a gate beside each query
        "attn_q_norm.weight": (head,),
        "attn_k_norm.weight": (head,),
    }
    delta = {
        **common,
        "attn_qkv.weight": (mixed, width),
        "attn_gate.weight": (values, width),
        "ssm_conv1d.weight": (mixed, taps),
        "ssm_dt.bias": (linear,),
        "ssm_a": (linear,),
        "ssm_beta.weight": (linear, width),
        "ssm_alpha.weight": (linear, width),
        "ssm_norm.weight": (each,),
        "ssm_out.weight": (width, values),
    }
    return Shapes(
        "qwen35",
        {
            **_sizes(width, inner, layers, heads, groups, vocabulary, 1e7),
            "attention.key_length": head,
            "attention.value_length": head,
            "rope.dimension_count": 64,
            "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
            "full_attention_interval": 4,
            "ssm.conv_kernel": taps,
            "ssm.state_size": each,
            "ssm.group_count": linear,
            "ssm.time_step_rank": linear,
            "ssm.inner_size": values,
        },
        _model(
            [full if number % 4 == 3 else delta for number in range(layers)],
            token_embd=(vocabulary, width),
            output_norm=(width,),
        ),
    )


def gemma4(layers: int = 35, sharing: int = 20, vocabulary: int = 262144) -> Shapes:
    """Gemma 4 E2B: a table of inputs for each layer, windows, keys and values that layers share."""
    width, inner, heads, groups, head, wide, own, every = 1536, 6144, 8, 1, 256, 512, 256, 5

    def layer(number: int) -> dict[str, Shape]:
        size = wide if (number + 1) % every == 0 else head
        shares = number >= layers - sharing
        attention = _attention(width, heads * size, groups * size)
        attention |= {"attn_q_norm.weight": (size,), "attn_k_norm.weight": (size,)}
        if shares:
            attention = {name: one for name, one in attention.items() if name[5] not in "kv"}
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
        return {
            **attention,
            **_ffn(width, 2 * inner if shares else inner),
            **{f"{name}.weight": (width,) for name in norms},
            "inp_gate.weight": (own, width),
            "proj.weight": (width, own),
            "layer_output_scale.weight": (1,),
        }

    windows = [(number + 1) % every != 0 for number in range(layers)]
    forward = [2 * inner if number >= layers - sharing else inner for number in range(layers)]
    return Shapes(
        "gemma4",
        {
            **_sizes(width, inner, layers, heads, groups, vocabulary, 1e6),
            "feed_forward_length": np.array(forward, np.int32),
            "attention.key_length": wide,
            "attention.value_length": wide,
            "attention.key_length_swa": head,
            "attention.value_length_swa": head,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": np.array(windows),
            "attention.shared_kv_layers": sharing,
            "embedding_length_per_layer_input": own,
            "final_logit_softcapping": 30.0,
            "rope.freq_base_swa": 1e4,
            "rope.dimension_count": wide,
            "rope.dimension_count_swa": head,
        },
        _model(
            [layer(number) for number in range(layers)],
            token_embd=(vocabulary, width),
            output_norm=(width,),
            per_layer_token_embd=(vocabulary, layers * own),
            per_layer_model_proj=(layers * own, width),
            per_layer_proj_norm=(own,),
            rope_freqs=(wide // 2,),
        ),
        sharp=0.25,
    )


def gpt_oss(layers: int = 4, experts: int = 32) -> Shapes:
    """gpt-oss 20B, of whose 24 layers and 201,088 tokens there are as many of each."""
    width, inner, heads, groups, head, chosen = 2880, 2880, 64, 8, 64, 4
    vocabulary = 201088 * layers // 24 // 64 * 64
    attention = _attention(width, heads * head, groups * head)
    biases = {name.replace("weight", "bias"): (one[0],) for name, one in attention.items()}
    mixture: dict[str, Shape] = {"ffn_gate_inp.weight": (experts, width)}
    mixture["ffn_gate_inp.bias"] = (experts,)
    for name, (outputs, inputs) in _ffn(width, inner).items():
        stem = name.replace(".weight", "_exps")
        mixture |= {
            f"{stem}.weight": (experts, outputs, inputs),
            f"{stem}.bias": (experts, outputs),
        }
    layer = {
        **attention,
        **biases,
        **mixture,
        "attn_norm.weight": (width,),
        "post_attention_norm.weight": (width,),
        "attn_sinks.weight": (heads,),
    }
    return Shapes(
        "gpt-oss",
        {
            **_sizes(width, inner, layers, heads, groups, vocabulary, 150000.0),
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.key_length": head,
            "attention.value_length": head,
            "attention.sliding_window": 128,
            "expert_count": experts,
            "expert_used_count": chosen,
            "expert_feed_forward_length": inner,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
        },
        _model(
            [layer] * layers,
            token_embd=(vocabulary, width),
            output_norm=(width,),
            output=(vocabulary, width),
        ),
    )


def _sizes(
    width: int, inner: int, layers: int, heads: int, groups: int, vocabulary: int, theta: float
) -> dict[str, Any]:
    """The keys that every architecture has."""
    return {
        "vocab_size": vocabulary,
        "context_length": CONTEXT,
        "embedding_length": width,
        "feed_forward_length": inner,
        "block_count": layers,
        "attention.head_count": heads,
        "attention.head_count_kv": groups,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": theta,
    }


FAMILIES: Final[Mapping[str, tuple[Shapes, Shapes]]] = {
    "qwen3.5-0.8b": (qwen35(), qwen35(4, 2048)),
    "gemma4-e2b": (gemma4(), gemma4(10, 5, 2048)),
    "gpt-oss-4-layers": (gpt_oss(), gpt_oss(1, 8)),
}
"""What is measured, and the same with few layers: what rounds as llama.cpp does strays little."""


def write_shapes(shapes: Shapes, path: Path, kind: str = "F16", seed: int = 0) -> Path:
    """The model as a file: matrices in ``kind``, all that no quantizer takes in f32."""
    draws = np.random.default_rng(seed)
    before = shapes.architecture
    metadata = {
        "general.architecture": before,
        "general.type": "model",
        "general.name": path.stem,
        "general.file_type": {"F32": 0, "F16": 1}[kind],
        "tokenizer.ggml.model": "no_vocab",
        **{f"{before}.{key}": value for key, value in shapes.keys.items()},
    }
    tensors = [
        Outgoing(
            name,
            "F32" if _small(name, shape) else kind,
            shape,
            partial(_numbers, shapes, name, draws, "F32" if _small(name, shape) else kind),
        )
        for name, shape in shapes.tensors.items()
    ]
    write_gguf(path, metadata, tensors)
    return path


def _small(name: str, shape: Shape) -> bool:
    return len(shape) == 1 or "bias" in name or "conv1d" in name or "gate_inp" in name


def _numbers(shapes: Shapes, name: str, draws: np.random.Generator, kind: str) -> Iterator[Array]:
    """Numbers such as a model has: norms near 1, decays below 0, frequencies some of which stop."""
    size = math.prod(shapes.tensors[name])
    if name == "rope_freqs.weight":  # a quarter of the pairs rotates
        yield np.where(np.arange(size) < size // 4, 1.0, 1e30).astype(np.float32)
        return
    middle, spread = _distribution(name, shapes.sharp)
    for first in range(0, size, CHUNK):
        found = draws.standard_normal(min(CHUNK, size - first), np.float32)
        found *= np.float32(spread)
        found += np.float32(middle)
        yield found.astype(np.float16) if kind == "F16" else found


def _distribution(name: str, sharp: float) -> tuple[float, float]:
    """The middle and the deviation of a tensor's numbers."""
    if name.endswith(("attn_q_norm.weight", "attn_k_norm.weight")):
        return sharp, 0.1 * sharp
    if name.endswith(("norm.weight", "layer_output_scale.weight")):
        return 1.0, 0.1
    if name.endswith("ssm_a"):
        return -4.0, 0.5
    if name.endswith("ssm_conv1d.weight"):
        return 0.0, 0.3
    return 0.0, SPREAD
