"""Encoders of text as GGUF files, written by ``gguf`` as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from ptir.checkpoint import Checkpoint
from ptir.params.source import ParamSource

PREFIXES = ("bert.", "roberta.", "distilbert.", "nomic_bert.", "model.")
FIRST = {"roberta": 2, "xlm-roberta": 2}
"""Positions that stand for no token, which converters cut off."""
LEFT_OUT = ("position_ids", "predictions", "seq_relationship", "vocab_", "lm_head", "decoder")
NAMES = {"classifier.weight": "classifier.out_proj.weight"}
NAMES |= {"classifier.bias": "classifier.out_proj.bias"}
"""What converters call a classifier, so that it is the output."""


def tensors(source: ParamSource, family: str, projected: bool = True) -> dict[str, Any]:
    """The parameters by GGUF's names, without what an embedding has no use for.

    A classifier has the projection before it, which llama.cpp's converter leaves out of a BERT's.
    """
    modern = family == "modernbert"
    kind = gguf.MODEL_ARCH.MODERN_BERT if modern else gguf.MODEL_ARCH.BERT
    names, found = gguf.get_tensor_name_map(kind, 64), {}
    projected = projected and any(name.startswith("classifier") for name in source.names())
    for stored in source.names():
        name = stored
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if any(part in name for part in LEFT_OUT):
            continue
        array = np.asarray(source.read(stored), np.float32)
        if name == "embeddings.position_embeddings.weight":
            array = array[FIRST.get(family, 0) :]
        if name.startswith("pooler.dense"):
            if not projected:
                continue
            name = name.replace("pooler", "classifier")
        called = names.get_name(NAMES.get(name, name), try_suffixes=(".weight", ".bias"))
        assert called is not None, name
        found[called] = array
    return found


def keys(config: Mapping[str, Any], pooling: int | None) -> dict[str, Any]:
    """The keys of the architecture as the converter writes them."""
    family = config["model_type"]
    distilled = family == "distilbert"
    said = {
        "context_length": config["max_position_embeddings"] - FIRST.get(family, 0),
        "embedding_length": config["dim" if distilled else "hidden_size"],
        "feed_forward_length": config["hidden_dim" if distilled else "intermediate_size"],
        "block_count": config["n_layers" if distilled else "num_hidden_layers"],
        "attention.head_count": config["n_heads" if distilled else "num_attention_heads"],
        "attention.causal": False,
    }
    if family == "modernbert":
        said |= {
            "attention.layer_norm_epsilon": config.get("norm_eps", 1e-5),
            "attention.sliding_window": config["local_attention"],
            "attention.sliding_window_pattern": config["global_attn_every_n_layers"],
            "rope.freq_base": config.get("global_rope_theta", 160000.0),
            "rope.scaling.type": "none",
            "vocab_size": config["vocab_size"],
        }
    else:
        said["attention.layer_norm_epsilon"] = config.get("layer_norm_eps", 1e-12)
    return said if pooling is None else {**said, "pooling_type": pooling}


def write(
    path: Path,
    checkpoint: Checkpoint,
    *,
    pooling: int | None = None,
    kinds: Callable[[str], Kind] = lambda name: Kind.F32,
    more: Mapping[str, Any] | None = None,
    projected: bool = True,
    vocabulary: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """``checkpoint`` as a file; ``more`` keys replace those of the architecture, None is none."""
    family = str(checkpoint.config["model_type"])
    architecture = "modern-bert" if family == "modernbert" else "bert"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**keys(checkpoint.config, pooling), **(more or {})}.items():
        name = f"{architecture}.{key}"
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_array(name, value)
    vocabulary(writer)
    for name, array in tensors(checkpoint.source, family, projected).items():
        kind = kinds(name) if array.ndim > 1 else Kind.F32
        raw = gguf.quants.quantize(array, kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def words(writer: gguf.GGUFWriter, tokens: list[str], kinds: int = 2) -> None:
    """A WordPiece vocabulary: pieces that begin a word are marked, instead of those that do not."""
    control = [one.startswith("[") and one.endswith("]") for one in tokens]
    marked = [
        one if special else one[2:] if one.startswith("##") else f"▁{one}"
        for one, special in zip(tokens, control, strict=True)
    ]
    writer.add_token_type_count(kinds)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(marked)
    writer.add_token_types([3 if special else 1 for special in control])
    writer.add_bos_token_id(tokens.index("[CLS]"))
    writer.add_eos_token_id(tokens.index("[SEP]"))
    writer.add_sep_token_id(tokens.index("[SEP]"))
    writer.add_unk_token_id(tokens.index("[UNK]"))
    writer.add_pad_token_id(tokens.index("[PAD]"))
    writer.add_mask_token_id(tokens.index("[MASK]"))
