"""The table of architectures: what a loader needs to know about each, by ``model_type``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ptir.capture.tensor import Tensor
from ptir.errors import PluginError, UsageError, unknown_name
from ptir.models.causal import Decoder
from ptir.models.key_layouts import KeyLayout
from ptir.nn.state import LayerState, State
from ptir.params.source import ParamSource
from ptir.params.stacked import Rules, Stack

GENERATES: Final = ("generate", "forward", "trace")
"""What a model of language can do; the names of methods of ``Model``."""
SEES: Final = ("classify", "embed", "forward", "trace")
"""What a model of images can do."""
MATCHES: Final = (*SEES, "embed_texts")
"""What a model of images and texts can do."""
HEARS: Final = ("transcribe", "forward", "trace")
"""What a model of speech can do."""
READS: Final = ("embed", "classify", "classify_tokens", "rerank", "fill", "forward", "trace")
"""What a model that reads whole texts can do; which of it depends on its head."""

Described = tuple[Mapping[str, Any], ParamSource]
"""A configuration and the parameters that it describes."""


def _as_stored(config: Mapping[str, Any], source: ParamSource) -> Described:
    return config, source


class CausalModel(Protocol):
    """What generation needs of a bound language model."""

    def states(self) -> tuple[LayerState, ...]:
        """What each layer carries between steps."""
        ...

    def __call__(
        self, tokens: Tensor, state: State, start: Tensor, count: Tensor, *, every: bool = False
    ) -> tuple[Tensor, State]:
        """Logits and the next state for ``tokens`` i32[B,T] at positions ``start`` i32[B].

        Only the first ``count[b]`` tokens of row b are real. Logits are f32[B,V] of each row's
        last real token, or f32[B,T,V] when ``every`` is set.
        """
        ...


class SpeechNetwork(Protocol):
    """What transcribing needs of a bound model of speech."""

    decoder: Decoder
    """What reads and writes tokens (``CausalModel``); its states are ``CrossKeysValues``."""

    def __call__(self, features: Tensor) -> State:
        """What is heard in log-mel features f32[B,F,M], as the decoder attends to it.

        By layer keys and values f32[B,H,S,D]: the last two tensors of its state.
        """
        ...

    def alignment(
        self, tokens: Tensor, state: State, count: Tensor, heads: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """How much ``tokens`` i32[B,T] attend to each position of what is heard: f32[B,N,T,S].

        And the logits behind each of them, f32[B,T,V]. ``heads`` are N pairs of a layer and a head
        of it, by layers. ``state`` is a fresh one that has room for the tokens, of which ``count``
        i32[B] are real, and what is heard.
        """
        ...


class ImageNetwork(Protocol):
    """What classifying and embedding need of a bound model of images."""

    classes: int
    """How many classes the head tells apart; 0 where there is none."""

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features f32[N,D] and scores f32[N,classes] of images f32[N,H,W,3].

        The images are normalized as the model was trained; scores are those before softmax, and
        None where there is no head.
        """
        ...


class TextNetwork(Protocol):
    """What embedding and classifying need of a bound model that reads whole texts.

    All methods take texts as token ids i32[B,T], the kind of each token i32[B,T] (the number of
    its text, where two are read together), and how many tokens of each row are real i32[B].
    """

    classes: int
    """How many classes the head tells apart; 0 where there is none."""
    scored: str
    """What the head scores: ``texts``, ``tokens``, or nothing."""

    def __call__(self, tokens: Tensor, kinds: Tensor, count: Tensor) -> Tensor:
        """Scores f32[B,classes], or of each token f32[B,T,classes]; without a head f32[B,T,D]."""
        ...

    def embedding(self, tokens: Tensor, kinds: Tensor, count: Tensor) -> Tensor:
        """A vector for each text, f32[B,E]."""
        ...

    def fill(self, tokens: Tensor, kinds: Tensor, count: Tensor, places: Tensor) -> Tensor:
        """Scores of all tokens at ``places`` i32[B,M], f32[B,M,V], with a head for masked words."""
        ...


@dataclass(frozen=True)
class ModelDefinition:
    """One architecture.

    ``build(config)`` gives the unbound module. ``prefixes`` may stand before every checkpoint
    key, ``renamed`` maps other names that checkpoints have for a key to it, ``ignored`` are
    patterns of keys that carry no parameter, ``tied`` maps keys to the ones that replace them when
    absent. ``defaults`` holds what a config.json means when it leaves a key out. ``presets`` are
    configurations for ``random:NAME``; they use the package's ``tokenizer`` (``gpt2``, or none),
    which is cut to a smaller vocabulary.
    ``prepare`` turns what a config.json says into one that others can read, before it is brought
    into normal form; what is prepared it leaves as it is.
    ``stacked`` are the rules by which tensors of experts become one (``ptir.params.stacked``).
    ``layers`` maps the config's keys for their numbers to what their tensors' names begin with
    (``{"n_layer": "h."}``), so that a number nobody stored is refused before they are built.
    ``capabilities`` name what a model of it can do: ``GENERATES``, ``SEES`` for one that takes
    images, ``READS`` for an encoder of text, ``HEARS`` for one that takes speech. ``arrange``
    brings a configuration and parameters as any library writes them into one form;
    ``key_layouts`` are the names by which encoders and models of images do it.
    ``preprocessing`` is what stands for a ``preprocessor_config.json`` that is not there.
    ``overrides`` maps functionals to the policies by which its models are best computed, the
    weakest of all (``RANKS``).
    """

    model_type: str
    build: Callable[[Mapping[str, Any]], Any] = field(compare=False)
    context: Callable[[Mapping[str, Any]], int] = field(compare=False)
    prefixes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    ignored: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])
    stacked: Rules = field(default_factory=dict[str, Stack])
    tokenizer: str = ""
    layers: Mapping[str, str] = field(default_factory=dict[str, str])
    prepare: Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(default=dict, compare=False)
    capabilities: tuple[str, ...] = GENERATES
    arrange: Callable[[Mapping[str, Any], ParamSource], Described] = field(
        default=_as_stored, compare=False
    )
    preprocessing: Mapping[str, Any] = field(default_factory=dict[str, Any])
    key_layouts: tuple[KeyLayout, ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict[str, str])


MODELS: Final[dict[str, ModelDefinition]] = {}

MODULES: Final[dict[str, str]] = {
    "gpt2": "ptir.models.gpt2",
    "lfm2": "ptir.models.lfm2",
    "llama": "ptir.models.llama_kin",
    "mistral": "ptir.models.llama_kin",
    "qwen2": "ptir.models.llama_kin",
    "qwen3": "ptir.models.llama_kin",
    "smollm3": "ptir.models.llama_kin",
    "granite": "ptir.models.llama_kin",
    "olmo2": "ptir.models.llama_kin",
    "ministral3": "ptir.models.ministral",
    "mistral3": "ptir.models.ministral",
    "phi3": "ptir.models.phi3",
    "gemma": "ptir.models.gemma",
    "gemma2": "ptir.models.gemma",
    "gemma3": "ptir.models.gemma",
    "gemma3_text": "ptir.models.gemma",
    "gemma4": "ptir.models.gemma4",
    "gemma4_text": "ptir.models.gemma4",
    "falcon": "ptir.models.falcon",
    "gpt_neox": "ptir.models.gpt_neox",
    "opt": "ptir.models.opt",
    "phi": "ptir.models.phi",
    "stablelm": "ptir.models.stablelm",
    "starcoder2": "ptir.models.starcoder2",
    "qwen3_5": "ptir.models.qwen3_5",
    "qwen3_5_text": "ptir.models.qwen3_5",
    "qwen3_5_moe": "ptir.models.qwen3_next",
    "qwen3_5_moe_text": "ptir.models.qwen3_next",
    "qwen3_next": "ptir.models.qwen3_next",
    "mamba2": "ptir.models.mamba2",
    "mixtral": "ptir.models.mixture",
    "qwen3_moe": "ptir.models.mixture",
    "granitemoe": "ptir.models.mixture",
    "gpt_oss": "ptir.models.gpt_oss",
    "resnet": "ptir.models.resnet",
    "mobilenet_v2": "ptir.models.mobilenet_v2",
    "convnext": "ptir.models.convnext",
    "vit": "ptir.models.vit",
    "dinov2": "ptir.models.dinov2",
    "clip": "ptir.models.clip",
    "clip_vision_model": "ptir.models.clip",
    "bert": "ptir.models.bert",
    "roberta": "ptir.models.bert",
    "xlm-roberta": "ptir.models.bert",
    "distilbert": "ptir.models.bert",
    "mpnet": "ptir.models.bert",
    "modernbert": "ptir.models.modernbert",
    "whisper": "ptir.models.whisper",
}
"""The module that defines each architecture; imported when the first model is opened."""


def define_model(definition: ModelDefinition) -> ModelDefinition:
    """Add an architecture to the table; a ``model_type`` that exists already is an error."""
    if definition.model_type in MODELS:
        raise PluginError(f"model_type {definition.model_type!r} is defined twice")
    MODELS[definition.model_type] = definition
    return definition


def add_module(model_type: str, module: str) -> None:
    """Name the module that defines an architecture; a ``model_type`` that has one is an error."""
    if model_type in MODULES:
        taken = MODULES[model_type]
        raise PluginError(f"model_type {model_type!r} is defined by {taken} and by {module}")
    MODULES[model_type] = module


def load_modules() -> None:
    """Import every module that defines an architecture."""
    for module in MODULES.values():
        importlib.import_module(module)


def definition(model_type: str) -> ModelDefinition:
    """The architecture called ``model_type``; raises ``UsageError`` naming those that exist."""
    if model_type in MODULES:
        importlib.import_module(MODULES[model_type])
    found = MODELS.get(model_type)
    if found is None:
        raise UsageError(unknown_name("model_type", model_type, {**MODULES, **MODELS}))
    return found


def preset(name: str) -> tuple[ModelDefinition, Mapping[str, Any]]:
    """The architecture and configuration behind ``random:NAME``."""
    found = presets()
    if name not in found:
        raise UsageError(unknown_name("random model", name, found))
    return found[name]


def presets() -> dict[str, tuple[ModelDefinition, Mapping[str, Any]]]:
    """Every architecture's configurations by the name of their random models."""
    load_modules()
    return {n: (d, c) for d in MODELS.values() for n, c in d.presets.items()}
