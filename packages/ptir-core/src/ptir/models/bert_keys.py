"""What checkpoints call the tensors of BERT and its kin, and what ``bert`` does."""

from __future__ import annotations

from typing import Final

from ptir.models.key_layouts import KeyLayout, Rule


def _norm(pattern: str, ours: str) -> tuple[Rule, ...]:
    """A norm's two vectors, which TensorFlow called gamma and beta."""
    return (
        (rf"{pattern}\.(?:weight|gamma)", rf"{ours}.weight"),
        (rf"{pattern}\.(?:bias|beta)", rf"{ours}.bias"),
    )


def _qkv(pattern: str, names: tuple[str, str, str]) -> Rule:
    """Queries, keys and values as parts of one matrix; the pattern's second group names them."""
    parts = "|".join(names)
    return (
        pattern.format(parts=f"({parts})") + r"\.(weight|bias)",
        lambda m: f"layers.{m[1]}.attention.qkv.{m[3]}#{names.index(m[2])}",
    )


_EMBEDDINGS: Final[tuple[Rule, ...]] = (
    (r"embeddings\.(word|position)_embeddings\.(.+)", r"embeddings.\1.\2"),
    *_norm(r"embeddings\.LayerNorm", "embeddings.norm"),
)


def _layout(prefix: str, *rules: Rule) -> KeyLayout:
    """The keys of a family, before which ``prefix`` may stand; rules are written without it."""
    optional = rf"(?:{prefix}\.)?"
    return KeyLayout(
        "transformers",
        mark=optional + r"embeddings\.word_embeddings\.weight",
        rules=tuple((optional + pattern, made) for pattern, made in (*_EMBEDDINGS, *rules)),
    )


_LAYER: Final = r"encoder\.layer\.(\d+)\."
_MLP: Final[tuple[Rule, ...]] = (
    (_LAYER + r"intermediate\.dense\.(.+)", r"layers.\1.up.\2"),
    (_LAYER + r"output\.dense\.(.+)", r"layers.\1.down.\2"),
    *_norm(_LAYER + r"output\.LayerNorm", r"layers.\1.norm2"),
)
_BERT: Final[tuple[Rule, ...]] = (
    (r"embeddings\.token_type_embeddings\.(.+)", r"embeddings.kind.\1"),
    _qkv(_LAYER + r"attention\.self\.{parts}", ("query", "key", "value")),
    (_LAYER + r"attention\.output\.dense\.(.+)", r"layers.\1.attention.out.\2"),
    *_norm(_LAYER + r"attention\.output\.LayerNorm", r"layers.\1.norm1"),
    *_MLP,
)


def _words(dense: str, norm: str, bias: str, out: str) -> tuple[Rule, ...]:
    """The head for masked words, which stands outside of the family's prefix."""
    return (
        (rf"{dense}\.(.+)", r"words.dense.\1"),
        *_norm(norm, "words.norm"),
        (bias, "words.bias"),
        (rf"{out}\.(.+)", r"words.out.\1"),
    )


_LM_HEAD: Final = _words(
    r"lm_head\.dense", r"lm_head\.layer_norm", r"lm_head\.bias", r"lm_head\.decoder"
)
_ROBERTA_HEAD: Final[tuple[Rule, ...]] = (
    (r"classifier\.dense\.(.+)", r"head.dense.\1"),
    (r"classifier\.out_proj\.(.+)", r"head.out.\1"),
    (r"classifier\.(weight|bias)", r"head.out.\1"),
)
BERT: Final = _layout(
    "bert",
    *_BERT,
    (r"pooler\.dense\.(.+)", r"head.dense.\1"),
    (r"classifier\.(.+)", r"head.out.\1"),
    *_words(
        r"cls\.predictions\.transform\.dense",
        r"cls\.predictions\.transform\.LayerNorm",
        r"cls\.predictions\.bias",
        r"cls\.predictions\.decoder",
    ),
)
ROBERTA: Final = _layout("roberta", *_BERT, *_ROBERTA_HEAD, *_LM_HEAD)
_DISTIL: Final = r"transformer\.layer\.(\d+)\."
DISTILBERT: Final = _layout(
    "distilbert",
    _qkv(_DISTIL + r"attention\.{parts}_lin", ("q", "k", "v")),
    (_DISTIL + r"attention\.out_lin\.(.+)", r"layers.\1.attention.out.\2"),
    *_norm(_DISTIL + "sa_layer_norm", r"layers.\1.norm1"),
    (_DISTIL + r"ffn\.lin1\.(.+)", r"layers.\1.up.\2"),
    (_DISTIL + r"ffn\.lin2\.(.+)", r"layers.\1.down.\2"),
    *_norm(_DISTIL + "output_layer_norm", r"layers.\1.norm2"),
    (r"pre_classifier\.(.+)", r"head.dense.\1"),
    (r"classifier\.(.+)", r"head.out.\1"),
    *_words(r"vocab_transform", r"vocab_layer_norm", r"vocab_projector\.bias", "vocab_projector"),
)
MPNET: Final = _layout(
    "mpnet",
    _qkv(_LAYER + r"attention\.attn\.{parts}", ("q", "k", "v")),
    (_LAYER + r"attention\.attn\.o\.(.+)", r"layers.\1.attention.out.\2"),
    *_norm(_LAYER + r"attention\.LayerNorm", r"layers.\1.norm1"),
    *_MLP,
    (r"encoder\.relative_attention_bias\.(.+)", r"relative_bias.\1"),
    *_ROBERTA_HEAD,
    *_LM_HEAD,
)
