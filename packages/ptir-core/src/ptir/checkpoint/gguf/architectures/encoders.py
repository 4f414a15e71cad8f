"""Encoders of text: BERT, which RoBERTa's and DistilBERT's files are too, and ModernBERT.

Parameters have the names that Transformers has for them. A classifier (``cls``) stands in files of
rerankers; without it a vector is pooled as ``pooling_type`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.layout import (
    FACTORS,
    Config,
    Layout,
    Rows,
    Tensors,
    check_layers,
    vocabulary_rows,
)
from ptir.checkpoint.gguf.architectures.llama import SCALING, THETA
from ptir.checkpoint.gguf.fields import Key, Keys, plain
from ptir.checkpoint.gguf.pooling import BY_FIRST, pooling_of
from ptir.errors import short
from ptir.models.encoder import PROJECTED
from ptir.models.llama import SLIDING
from ptir.models.rotation import FULL

CLASSIFIER: Final = "cls.output"
PROJECTION: Final = "cls"
KINDS: Final = "token_types.weight"
POSITIONS: Final = "position_embd.weight"
CAUSAL: Final = "attention.causal"
LABELS: Final = "classifier.output_labels"
ACTIVATION: Final = "hidden_act"
EPSILON: Final = "attention.layer_norm_epsilon"
SIZES: Final = (
    Key("context_length", "max_position_embeddings"),
    Key("embedding_length", "hidden_size"),
    Key("feed_forward_length", "intermediate_size"),
    Key("attention.head_count", "num_attention_heads"),
)
"""Numbers that every file has."""
BERT_EPSILON: Final = Key(EPSILON, "layer_norm_eps")
MODERN_EPSILON: Final = Key(EPSILON, "norm_eps")
WINDOW: Final = Key("attention.sliding_window", "local_attention")
EVERY: Final = Key("attention.sliding_window_pattern", "global_attn_every_n_layers")
LOCAL: Final = Key("rope.freq_base_swa", "rope_theta")


def _read(keys: Keys, tensors: Tensors, family: str) -> Config:
    """What all have, and what the classifier is, if there is one."""
    rule = "an encoder sees the whole text; one that does not is not implemented: choose another"
    keys.require(not keys.flag(CAUSAL, False), CAUSAL, rule)
    if FACTORS in tensors:
        keys.refuse("rope.scaling", f"{FACTORS!r} is stored, which no encoder here takes")
    return {
        "vocab_size": vocabulary_rows(keys, tensors),
        "num_hidden_layers": check_layers(keys, tensors),
        **{row.field: keys.at(row) for row in SIZES},
        **_classifier(keys, tensors, family),
    }


def _classifier(keys: Keys, tensors: Tensors, family: str) -> Config:
    """The classes and their names; ``cls`` alone, or ``cls.output``, has no projection before it.

    Which of them files have is up to converters: llama.cpp's leaves out a BERT's projection.
    """
    held = [stem for stem in (CLASSIFIER, PROJECTION) if f"{stem}.weight" in tensors]
    if not held:
        return {"architectures": [f"{family}Model"]}
    classes = tensors[f"{held[0]}.weight"].shape[0]
    found = {
        "architectures": [f"{family}ForSequenceClassification"],
        "num_labels": classes,
        PROJECTED: len(held) == 2,
    }
    said: Any = keys.found(LABELS)
    if said is None:
        return found
    names = plain(said)
    right = isinstance(names, list) and all(isinstance(one, str) for one in names)
    if not right or len(names) != classes:
        rule = f"the names of {classes} classes are needed; fetch the file again"
        keys.refuse(LABELS, f"{short(names)}: {rule}")
    return found | {"id2label": {str(number): name for number, name in enumerate(names)}}


def _bert(keys: Keys, tensors: Tensors) -> Config:
    """Kinds of tokens as many as have a vector: DistilBERT's files have none."""
    return {
        **_read(keys, tensors, "Bert"),
        BERT_EPSILON.field: keys.at(BERT_EPSILON, 1e-12),
        "type_vocab_size": tensors[KINDS].shape[0] if KINDS in tensors else 0,
        "hidden_act": "gelu",
    }


def _modern_bert(keys: Keys, tensors: Tensors) -> Config:
    """Of so many layers the first has no window, and a rotation of its own; as they were trained.

    A classifier reads the mean of a text's vectors, as in llama.cpp, unless the file pools by the
    first one.
    """
    kind = keys.text(SCALING, "none")
    keys.require(kind == "none", SCALING, "only none is implemented: choose another model")
    layers, every = check_layers(keys, tensors), _every(keys)
    bases = {FULL: keys.at(THETA, 160000.0), SLIDING: keys.at(LOCAL, 10000.0)}
    return {
        **_read(keys, tensors, "ModernBert"),
        MODERN_EPSILON.field: keys.at(MODERN_EPSILON, 1e-5),
        WINDOW.field: keys.at(WINDOW, 128),
        EVERY.field: every,
        "layer_types": [SLIDING if layer % every else FULL for layer in range(layers)],
        "rope_parameters": {
            name: {"rope_type": "default", "rope_theta": float(base)}
            for name, base in bases.items()
        },
        "hidden_activation": keys.text(ACTIVATION, "gelu"),
        "norm_bias": "token_embd_norm.bias" in tensors,
        "attention_bias": "blk.0.attn_qkv.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "classifier_bias": f"{PROJECTION}.bias" in tensors,
        "classifier_pooling": "cls" if pooling_of(keys) == BY_FIRST else "mean",
    }


def _every(keys: Keys) -> int:
    """Of how many layers one has no window: a number, or whether each layer has one."""
    found: Any = keys.found(EVERY.name)
    if not hasattr(found, "tolist"):
        return int(keys.at(EVERY, 3))
    windows = [bool(one) for one in found.tolist()]
    every = next((n for n in range(1, len(windows)) if not windows[n]), len(windows))
    right = windows and windows == [bool(n % every) for n in range(len(windows))]
    rule = "layers without a window at even distances, from the first on, are implemented"
    keys.require(bool(right), EVERY.name, f"{rule}: choose another model")
    return every


def _said_of_bert(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of an encoder besides numbers."""
    found: dict[str, Any] = {CAUSAL: False}
    names = config.get("id2label")
    if config.get("num_labels") and isinstance(names, Mapping):
        order = sorted(names, key=int)
        found[LABELS] = [str(names[number]) for number in order]
    return found


def _said_of_modern_bert(config: Mapping[str, Any]) -> dict[str, Any]:
    """The bases of both rotations, and which layers have a window."""
    kinds, bases = config["layer_types"], config["rope_parameters"]
    full = [layer for layer, kind in enumerate(kinds) if kind == FULL]
    return {
        **_said_of_bert(config),
        EVERY.name: full[1] if len(full) > 1 else len(kinds),
        THETA.name: float(bases[FULL][THETA.field]),
        LOCAL.name: float(bases[SLIDING][LOCAL.field]),
        SCALING: "none",
        ACTIVATION: config.get("hidden_activation", "gelu"),
    }


BERT_OUTSIDE: Final = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    CLASSIFIER: "classifier",
    PROJECTION: "pooler.dense",
}
QKV: Final = tuple(Rows(f"attention.self.{one}", ("hidden_size",)) for one in
                   ("query", "key", "value"))  # fmt: skip

LAYOUTS: Final[dict[str, Layout]] = {
    "bert": Layout(
        "bert",
        _bert,
        "encoder.layer.",
        BERT_OUTSIDE,
        {
            "attn_q": "attention.self.query",
            "attn_k": "attention.self.key",
            "attn_v": "attention.self.value",
            "attn_output": "attention.output.dense",
            "attn_output_norm": "attention.output.LayerNorm",
            "ffn_up": "intermediate.dense",
            "ffn_down": "output.dense",
            "layer_output_norm": "output.LayerNorm",
        },
        fused={"attn_qkv": QKV},
        numbers=(*SIZES, BERT_EPSILON),
        encodes=True,
        alone={PROJECTION: "classifier"},
        said=_said_of_bert,
    ),
    "modern-bert": Layout(
        "modernbert",
        _modern_bert,
        "layers.",
        {
            "token_embd": "embeddings.tok_embeddings",
            "token_embd_norm": "embeddings.norm",
            "output_norm": "final_norm",
            CLASSIFIER: "classifier",
            PROJECTION: "head.dense",
            "cls.norm": "head.norm",
        },
        {
            "attn_norm": "attn_norm",
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.Wo",
            "ffn_norm": "mlp_norm",
            "ffn_up": "mlp.Wi",
            "ffn_down": "mlp.Wo",
        },
        numbers=(*SIZES, MODERN_EPSILON, WINDOW),
        encodes=True,
        alone={PROJECTION: "classifier"},
        said=_said_of_modern_bert,
    ),
}
"""By ``general.architecture``."""
