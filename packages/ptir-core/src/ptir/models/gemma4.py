"""Gemma 4 (Google DeepMind, 2026), the language models of those that also see and hear.

As Gemma 3, but norms count from 0, values are normed too, and scores are not scaled. Layers without
a window have larger heads of which some pairs rotate. The last layers read the keys and values of
earlier ones, and every layer may get an embedding of its own of each token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.causal import CachePositions, DecoderBlock
from ptir.models.fields import flag, listed, real, whole, whole_or_none
from ptir.models.gemma4_experts import STACKED, ExpertBlock, experts_of
from ptir.models.llama import (
    ACTIVATIONS,
    SLIDING,
    Config,
    Llama,
    define_llama,
    norm_of,
)
from ptir.models.mixture import ExpertSizes
from ptir.models.nested import PREFIXES, RENAMED, SEEING, text_part
from ptir.models.rotation import FULL
from ptir.nn import (
    Embedding,
    Linear,
    Module,
    cached_attention,
    fused_linear,
    last_rows,
    param,
    shared_attention,
)
from ptir.nn.state import LayerTensors, SharedState, State

EVERY: Final = 6
"""Every sixth layer has no window where nothing else is said."""
ENTRIES: Final = "per_layer_config"
OLDER: Final = ("rope_theta", "rope_scaling", "rope_local_base_freq", "sliding_window_pattern")
"""What configurations of earlier models say and those of this one do not."""
HEARING: Final = tuple(
    f"{before}{part}.*"
    for before in ("", "model.")
    for part in ("audio_tower", "embed_audio", "embed_vision")
)
"""Tensors of what sees and hears beside those of ``SEEING``, which nothing here reads."""
UNREAD: Final = tuple(
    f"layers.*.self_attn.{part}.weight" for part in ("k_proj", "v_proj", "k_norm", "v_norm")
)
"""Tensors that checkpoints may have in layers that read what another layer keeps."""


class Layer(NamedTuple):
    """The sizes of a layer, whose keys it reads (None: its own), whether keys are values too."""

    config: Config
    source: int | None
    keys_are_values: bool


@dataclass(frozen=True)
class Options:
    """The layers, their experts, and the width of the embedding that each gets of a token, or 0."""

    layers: tuple[Layer, ...]
    mixture: ExpertSizes | None
    width: int
    rows: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> Options:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        _refuse(config)
        kinds = _kinds(config)
        sized = _by_kind(config, kinds)
        sources = _sources(config, kinds)
        same, wide = flag(config, "attention_k_eq_v"), flag(config, "use_double_wide_mlp")
        layers = [
            Layer(_widened(sized[kind], wide and source is not None), source, same and kind == FULL)
            for kind, source in zip(kinds, sources, strict=True)
        ]
        mixture = experts_of(config, layers[0].config.activation)
        return Options(tuple(layers), mixture, *_per_layer(config))


def _refuse(config: Mapping[str, Any]) -> None:
    model = config.get("model_type")
    both = config.get("use_bidirectional_attention")
    if both not in (None, "vision"):
        raise CheckpointError(
            f"{model}: use_bidirectional_attention {short(both)} is not implemented; only null and"
            ' "vision" are: choose another checkpoint'
        )


def _kinds(config: Mapping[str, Any]) -> list[str]:
    """The kind of each layer; the last has no window, whatever is said."""
    layers = whole(config, "num_hidden_layers")
    if config.get("layer_types") is None:
        found = [FULL if (layer + 1) % EVERY == 0 else SLIDING for layer in range(layers)]
    else:
        found = list(listed(config, "layer_types", (FULL, SLIDING), layers))
    return [*found[:-1], FULL]


def _by_kind(config: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Config]:
    """What layers of each kind are."""
    return {
        kind: replace(
            Config.of({**config, "layer_types": kinds, **more}),
            norms="both",
            mlp_bias=False,
            attention_scale=1.0,
            logits_cap=_cap(config),
            embedding_scale=math.sqrt(whole(config, "hidden_size")),
        )
        for kind, more in _sizes(config, kinds).items()
    }


def _sizes(config: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """What layers of each kind have that ``config`` says otherwise of all.

    Layers without a window have heads of another size, which two keys say or, where Transformers
    has written the file, an entry for each layer.
    """
    if config.get(ENTRIES) is not None:
        return {kind: _entry(config, kinds, kind) for kind in (SLIDING, FULL)}
    full = {"head_dim": whole(config, "global_head_dim")}
    groups = whole_or_none(config, "num_global_key_value_heads")
    if flag(config, "attention_k_eq_v") and groups is not None:
        full["num_key_value_heads"] = groups
    return {SLIDING: {}, FULL: full}


def _entry(config: Mapping[str, Any], kinds: Sequence[str], kind: str) -> Mapping[str, Any]:
    """What the entries of all layers of a kind say, which must be the same."""
    given = config[ENTRIES]
    if isinstance(given, Mapping):
        found = [given.get(str(layer), {}) for layer, one in enumerate(kinds) if one == kind]
        first = found[0] if found else {}
        known = isinstance(first, Mapping) and set(first) <= {"head_dim", "num_key_value_heads"}
        if known and all(one == first for one in found):
            return dict(first)
    raise CheckpointError(
        f"{config.get('model_type')}: {ENTRIES} {short(given)} must be an object in which all"
        f" layers of {kind} have the same head_dim and num_key_value_heads, and no more; correct"
        " it, or choose another checkpoint"
    )


def _cap(config: Mapping[str, Any]) -> float | None:
    key = "final_logit_softcapping"
    return None if config.get(key) is None else real(config, key)


def _widened(config: Config, wide: bool) -> Config:
    return replace(config, intermediate_size=2 * config.intermediate_size) if wide else config


def _sources(config: Mapping[str, Any], kinds: Sequence[str]) -> list[int | None]:
    """The layer that each one's keys and values are read from: the last of its kind with own."""
    shared = whole(config, "num_kv_shared_layers")
    own = kinds[: max(len(kinds) - shared, 0)]
    lacking = sorted(set(kinds) - set(own))
    if lacking:
        raise CheckpointError(
            f"{config.get('model_type')}: num_kv_shared_layers {shared} of {len(kinds)} leaves no"
            f" layer of {', '.join(lacking)} with keys of its own to read; check config.json"
        )
    last = {kind: layer for layer, kind in enumerate(own)}
    return [None] * len(own) + [last[kind] for kind in kinds[len(own) :]]


def _per_layer(config: Mapping[str, Any]) -> tuple[int, int]:
    """The width of the embedding that each layer gets of a token, and the rows of their table.

    Both are 0 where there is none.
    """
    width = whole(config, "hidden_size_per_layer_input")
    rows = whole(config, "vocab_size_per_layer_input")
    if width and rows < whole(config, "vocab_size"):
        raise CheckpointError(
            f"{config.get('model_type')}: vocab_size_per_layer_input {rows} must be at least"
            f" vocab_size {config['vocab_size']}: every token has a row; check config.json"
        )
    return width, rows if width else 0


class Attention(Module):
    """Causal self-attention over the layer's cache, or over the one that another layer extended."""

    def __init__(self, layer: int, made: Layer) -> None:
        config, own = made.config, made.source is None
        size, head, bias = config.hidden_size, config.head_dim, config.qkv_bias
        rows, groups = config.num_attention_heads * head, config.num_key_value_heads * head
        values = own and not made.keys_are_values
        self.q_proj = Linear(size, rows, bias=bias)
        self.k_proj = Linear(size, groups, bias=bias) if own else None
        self.v_proj = Linear(size, groups, bias=bias) if values else None
        self.o_proj = Linear(rows, size, bias=config.output_bias)
        self.q_norm = norm_of(config, head)
        self.k_norm = norm_of(config, head) if own else None
        self.head, self.epsilon, self.rotation = head, config.epsilon, config.rotations[layer]
        self.options = {"window": config.windows[layer], "scale": config.attention_scale}

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and the cache to read to f32[B,T,D] and that cache, extended if it is own."""
        batch, length, _ = x.shape
        layers = [one for one in (self.q_proj, self.k_proj, self.v_proj) if one is not None]
        q, *own = (
            part.reshape(batch, length, -1, self.head).transpose(0, 2, 1, 3)
            for part in fused_linear(x, layers)
        )
        q = self.q_norm(q)
        if self.k_norm is None:
            q, _ = self._rotated(q, q, cache, at)
            seen = shared_attention(q, cache, at.start, at.count, **self.options)
        else:
            v = F.rms_norm(own[-1], F.full((self.head,), 1.0), epsilon=self.epsilon)
            q, k = self._rotated(q, self.k_norm(own[0]), cache, at)
            seen, cache = cached_attention(q, k, v, cache, at.start, at.count, **self.options)
        return self.o_proj(seen.transpose(0, 2, 1, 3).reshape(batch, length, -1)), cache

    def _rotated(
        self, q: Tensor, k: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, Tensor]:
        assert self.rotation is not None
        return self.rotation.rotated(q, k, at.positions, cache[0].shape[2])


class Gemma4Block(ExpertBlock):
    """Attention, MLP and experts, what the layer makes of its own embedding, a factor of it all."""

    def __init__(self, layer: int, made: Layer, options: Options) -> None:
        self.made, width = made, options.width
        super().__init__(made.config, layer, options.mixture)
        if made.source is not None:
            self.state = SharedState(made.source)
        size, self.activation = made.config.hidden_size, made.config.activation
        if width:
            self.per_layer_input_gate = Linear(size, width, bias=False)
            self.per_layer_projection = Linear(width, size, bias=False)
            self.post_per_layer_input_norm = norm_of(made.config, size)
        self.layer_scalar = param(1)

    def make_attention(self, config: Config, layer: int) -> Module:
        """Attention with a cache of its own or of another."""
        return Attention(layer, self.made)

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions, given: Tensor | None = None
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D], a cache and ``given`` f32[B,T,P] to f32[B,T,D] and the extended cache."""
        x, cache = super().__call__(x, cache, at)
        if given is not None:
            gated = ACTIVATIONS[self.activation](self.per_layer_input_gate(x)) * given
            x = x + self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return x * self.layer_scalar, cache


class Gemma4(Llama):
    """The language model; its head is the token embedding where the checkpoint ties them."""

    layers: list[Gemma4Block]

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.options = Options.of(config)
        width, layers = self.options.width, len(self.options.layers)
        last = self.options.layers[-1].config
        super().__init__(config, lambda _: last)
        if width:
            self.embed_tokens_per_layer = Embedding(self.options.rows, layers * width)
            self.per_layer_model_projection = Linear(last.hidden_size, layers * width, bias=False)
            self.per_layer_projection_norm = norm_of(last, width)

    def make_block(self, layer: int) -> DecoderBlock:
        """The block of a layer."""
        return Gemma4Block(layer, self.options.layers[layer], self.options)

    def __call__(
        self, tokens: Tensor, state: State, start: Tensor, count: Tensor, *, every: bool = False
    ) -> tuple[Tensor, State]:
        """Logits and the next state; see ``CausalModel``.

        Layers without keys of their own leave nothing for later steps, so that they need the last
        token of each row only.
        """
        at = CachePositions.of(start, count, tokens.shape[1])
        x = self.embedded(tokens, at)
        given = self._per_layer_inputs(tokens, x)
        after: list[LayerTensors] = []
        for number, made in enumerate(self.options.layers):
            if made.source is not None and not every and x.shape[1] > 1:
                x, given, at = _last(x, given, at)
            read = state[number] if made.source is None else after[made.source]
            own = None if given is None else given[:, :, number]
            x, extended = self.layers[number](x, read, at, own)
            after.append(extended if made.source is None else ())
        if not every:
            x = last_rows(x, count) if x.shape[1] > 1 else x[:, 0]
        return self.logits(x), tuple(after)

    def _per_layer_inputs(self, tokens: Tensor, x: Tensor) -> Tensor | None:
        """What each layer gets of a token beside x f32[B,T,D]: f32[B,T,L,P]."""
        width = self.options.width
        if not width:
            return None
        shape = (*tokens.shape, len(self.options.layers), width)
        found = self.embed_tokens_per_layer(tokens).reshape(*shape) * math.sqrt(width)
        seen = self.per_layer_model_projection(x) * (1 / math.sqrt(self.config.hidden_size))
        return (self.per_layer_projection_norm(seen.reshape(*shape)) + found) * math.sqrt(0.5)


def _last(
    x: Tensor, given: Tensor | None, at: CachePositions
) -> tuple[Tensor, Tensor | None, CachePositions]:
    """The last real token of each row alone: f32[B,1,D], f32[B,1,L,P], and where it stands."""
    batch, length, size = x.shape
    x = last_rows(x, at.count).reshape(batch, 1, size)
    if given is not None:
        flat = given.reshape(batch, length, -1)
        given = last_rows(flat, at.count).reshape(batch, 1, *given.shape[2:])
    start = at.start + F.maximum(at.count - 1, 0)
    return x, given, CachePositions.of(start, F.minimum(at.count, 1), 1)


def prepare(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text's part, without what only configurations of earlier models say."""
    found = text_part(config, "gemma4_text")
    return {key: value for key, value in found.items() if key not in OLDER}


ROPES: Final = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
"""How layers are rotated where nothing else is said."""

DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "rope_parameters": ROPES,
    "tie_word_embeddings": True,
}
"""What config.json means when it leaves a key out."""


def _preset(every: int, **said: Any) -> dict[str, Any]:
    """A configuration in which every so-many-th layer has no window."""
    numbers = range(1, said["num_hidden_layers"] + 1)
    return {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        **DEFAULTS,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
        "layer_types": [SLIDING if number % every else FULL for number in numbers],
        "bos_token_id": 2,
        "eos_token_id": [1],
        **said,
    }


SPARSE: Final[dict[str, Any]] = {
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "num_hidden_layers": 30,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}
TINY: Final[dict[str, Any]] = {
    "vocab_size": 512,
    "vocab_size_per_layer_input": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "global_head_dim": 32,
    "sliding_window": 24,
    "max_position_embeddings": 256,
    "bos_token_id": 510,
    "eos_token_id": 511,
}

PRESETS: Final = {
    "gemma4-e2b": _preset(
        5,
        hidden_size=1536,
        intermediate_size=6144,
        num_hidden_layers=35,
        num_key_value_heads=1,
        num_kv_shared_layers=20,
    ),
    "gemma4-26b-a4b": _preset(6, **SPARSE),
    "gemma4-tiny": _preset(3, **TINY, num_kv_shared_layers=2, hidden_size_per_layer_input=32),
}
"""Gemma 4 E2B, 26B with experts, of which 4B work for a token, and a small one."""

for _model_type in ("gemma4", "gemma4_text"):
    define_llama(
        _model_type,
        defaults=DEFAULTS,
        presets=PRESETS if _model_type == "gemma4_text" else {},
        build=Gemma4,
        context=lambda config: whole(config, "max_position_embeddings"),
        prepare=prepare,
        prefixes=PREFIXES,
        renamed=RENAMED,
        ignored=(*UNREAD, *SEEING, *HEARING),
        stacked=STACKED,
    )
