"""From a model spec to a model handle: architecture, parameters, tokenizer, placement."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptir import plugins
from ptir.capture.lazy import default_target
from ptir.checkpoint import (
    Checkpoint,
    check_parameters,
    eos_token_ids,
    normalize_config,
    ties_embeddings,
)
from ptir.checkpoint.assign import some_names
from ptir.checkpoint.sentence import sentence_modules
from ptir.errors import CheckpointError, UsageError, short
from ptir.models import ModelDefinition, definition
from ptir.models.fields import whole
from ptir.models.images import declared_classifier
from ptir.models.nextn import HEAD, HEADS, stored_heads
from ptir.models.pooling import SENTENCE
from ptir.models.table import HEARS, READS, SEES
from ptir.models.timm import named_by_timm
from ptir.params.source import ParamSource, RenamedSource, stored_formats
from ptir.params.stacked import stacked
from ptir.params.storage import AUTO, TypeRule, cache_type, storage_rule
from ptir.params.store import ParamStore
from ptir.runtime.fast import fast_policies
from ptir.runtime.handle import Model
from ptir.runtime.held import held_parameters, packed_forms, types_taken
from ptir.runtime.model_overrides import configured_overrides, model_overrides
from ptir.runtime.prepacked import prepacked, streamed_weights
from ptir.runtime.specs import resolve
from ptir.runtime.tokenizer import CheckpointText, text_of

if TYPE_CHECKING:
    from ptir.backend.contract import Target
    from ptir.params.streaming import StreamedParameters
    from ptir.weights.affine_form import AffineForm


def load_model(
    model: str | os.PathLike[str],
    *,
    backend: Any = None,
    dtype: str = AUTO,
    quant: str | None = None,
    fast: bool = False,
    cache_dtype: str = AUTO,
    swa_full: bool = False,
    seed: int = 0,
    overrides: Mapping[str, str] | None = None,
    device_memory: str | int | None = None,
) -> Model:
    """Open a model; parameters are read when the first program needs them.

    ``model`` is a spec (``demo``, a folder, a file, a hub id, ``random:NAME``), ``dtype`` the
    storage type of matrices of floats on the device (``f32``, ``bf16``, ``f16``; ``auto``: each as
    it is stored, or f32 where the backend does not take that type), ``quant`` a quantization
    (``int8`` or ``int4``) of the weights that rows are multiplied with, ``cache_dtype`` the type of
    the key and value cache (one of the three, or ``auto``: f32). Layers with a window keep what it
    may still see; with ``swa_full`` they keep the whole text. ``seed`` is the one of random
    weights. ``fast`` rounds activations for the processor's dot instructions, and with weights of
    whole numbers also filters that go over images (docs/reference/accuracy.md); it is an error
    where there are no such instructions for the format, and floats beside blocks of few bits stay
    exact, with a warning. ``overrides``
    maps functionals, with conditions or without, to policies; they win over what `ptir tune` found,
    over plugins, the checkpoint's config (``ptir_overrides``) and what ``fast`` chooses, and lose
    to the environment, the command line and ``with ptir.overrides(...)``.
    ``device_memory`` (bytes, or a text such as ``2GiB``) is a budget for weights, caches and
    intermediates together: weights are read again for every step as far as they do not fit, with
    the same results. Raises ``CheckpointError``, ``UsageError``, ``UnsupportedError`` or
    ``BackendUnavailable``.
    """
    began = time.perf_counter()
    limit = None if device_memory is None else _limited(device_memory)
    plugins.ensure_installed()
    checkpoint = prepared(resolve(os.fspath(model), seed=seed))
    storage_rule(dtype)  # an unknown name is an error before anything is read
    cached = cache_type(cache_dtype)
    with errors_name(checkpoint.path):
        read = described(checkpoint, os.fspath(model))
    _warn_without_classifier(checkpoint, read)
    target = default_target(backend)
    types = storage_rule(dtype, types_taken(target))
    chosen: dict[str, str] = {}
    if fast:
        filters = bool(read.module.filters())
        chosen = fast_policies(_multiplied(read, quant, types), target, filters=filters)
    asked = model_overrides(
        str(checkpoint.path), read.architecture, read.policies, chosen, overrides or {}
    )
    held = held_parameters(read.module, read.source, quant, str(checkpoint.path))
    place = prepacked if limit is None else streamed_weights
    streamed = None if limit is None else limit(target)
    kept = place(checkpoint.files, target)
    store = ParamStore(held.source, target, types, held.keep_dtype, kept, streamed)
    if streamed is not None:
        target.backend.limit_memory(target.device, streamed.budget)
    if "generate" not in read.architecture.capabilities:
        with errors_name(checkpoint.path):
            _check_variances(read.source)
    made = _handle(read.architecture)(
        name=os.fspath(model),
        checkpoint=checkpoint,
        module=read.module.bind(partial(held.resolve, store)),
        store=store,
        target=target,
        text=read.text,
        context=read.context,
        overrides=asked,
        load_seconds=time.perf_counter() - began,
        cache_dtype=cached,
        swa_full=swa_full,
    )
    if streamed is not None:
        from ptir.runtime.savings import savings_of

        streamed.savings = savings_of(made, read.module, read.source, quant)
    return made


def _warn_without_classifier(checkpoint: Checkpoint, read: Described) -> None:
    """Tell that a classifier is declared and not stored, so that the model embeds alone."""
    if read.architecture.capabilities not in (SEES, READS) or read.module.classes:
        return
    declared = declared_classifier(checkpoint.config)
    if declared:
        warnings.warn(
            f"{checkpoint.path}: config.json declares a classifier ({declared}), and its weights"
            " are not stored: the model embeds and cannot classify; fetch the checkpoint again to"
            " classify with it",
            stacklevel=3,
        )


VARIANCE: Final = ".running_var"
"""The end of the names of variances that batch norms divide by."""


def _check_variances(source: ParamSource) -> None:
    """Refuse a batch norm that divides by no number: one whose variance is below 0 or NaN."""
    for name in source.names():
        if not name.endswith(VARIANCE):
            continue
        values = source.read(name).astype("f8").ravel()
        source.release(name)
        wrong = np.flatnonzero(~((values >= 0) & (values < math.inf)))
        if wrong.size:
            raise CheckpointError(
                f"{name} holds {values[wrong[0]]:g} at channel {wrong[0]} ({wrong.size} such); a"
                " variance is a number >= 0: fetch the checkpoint again"
            )


def _limited(device_memory: str | int) -> Callable[[Target], StreamedParameters]:
    """A budget, checked: what holds a target's parameters to it; raises ``UsageError``."""
    from ptir.params.streaming import StreamedParameters, memory_budget  # most models have none

    return partial(StreamedParameters, memory_budget(device_memory))


def _handle(architecture: ModelDefinition) -> type[Model]:
    """The class of what a model of this architecture is used by."""
    if "generate" in architecture.capabilities:
        return Model
    if architecture.capabilities == READS:
        from ptir.runtime.text_model import TextModel

        return TextModel
    if architecture.capabilities == HEARS:
        from ptir.runtime.speech import SpeechModel

        return SpeechModel
    from ptir.runtime.image_model import ImageModel, ImageTextModel  # most models see nothing

    return ImageTextModel if "embed_texts" in architecture.capabilities else ImageModel


@dataclass(frozen=True)
class DescribedWeights:
    """What a checkpoint describes but its text: checked, and no weight touched.

    ``source`` has the names of the unbound ``module``'s parameters.
    """

    architecture: ModelDefinition
    source: ParamSource
    module: Any
    context: int
    policies: Mapping[str, str]


@dataclass(frozen=True)
class Described(DescribedWeights):
    """The same with what is known of text."""

    text: CheckpointText


def described(checkpoint: Checkpoint, name: str = "") -> Described:
    """Read and check a checkpoint's files but its weights; raises ``CheckpointError``.

    Messages about its text call it by ``name``, or by its path.
    """
    return Described(**vars(described_weights(checkpoint)), text=text_of(checkpoint, name))


def described_weights(checkpoint: Checkpoint) -> DescribedWeights:
    """The same without the vocabulary, which may be long."""
    said = named_by_timm(checkpoint.config)
    architecture = architecture_of(said)
    config = architecture.prepare(said)
    config = {**architecture.defaults, **normalize_config(config)}
    ignored = architecture.ignored
    if architecture.capabilities == READS:
        config[SENTENCE] = sentence_modules(checkpoint.sentence_files)
    else:
        ignored = (*ignored, f"{SENTENCE}.*")
    config, source = architecture.arrange(config, checkpoint.source)
    source = stacked(unprefixed(source, architecture), architecture.stacked)
    check_layers(architecture, config, source)
    head = next(iter(architecture.tied), "lm_head.weight")
    tied = ties_embeddings(config, source.names(), head)
    module = _built(checkpoint.path, architecture, {**config, "tie_word_embeddings": tied}, source)
    ignored = (*ignored, *(architecture.tied if tied else ()))
    check_parameters(module.parameters(), source, ignore=ignored, said_by=checkpoint.said_by)
    eos_token_ids(checkpoint.config, checkpoint.generation_config)
    return DescribedWeights(
        architecture=architecture,
        source=source,
        module=module,
        context=architecture.context(config),
        policies=configured_overrides(config),
    )


def _built(
    path: Path, architecture: ModelDefinition, config: Mapping[str, Any], source: ParamSource
) -> Any:
    """The module, without a head that is not stored; of one that is in part a warning says what."""
    names = frozenset(source.names())
    module = architecture.build({**config, HEADS: stored_heads(config, names)})
    lacking = [one for one in module.parameters() if one.startswith(HEAD) and one not in names]
    if not lacking:
        return module
    warnings.warn(
        f"{path}: the head that predicts further tokens is left out, since {len(lacking)} of its"
        f" tensors are missing ({some_names(lacking)}); fetch the checkpoint again to speculate"
        " with it (--speculate nextn)",
        stacklevel=2,
    )
    return architecture.build({**config, HEADS: 0})


def _multiplied(read: Described, quant: str | None, types: TypeRule) -> set[str | AffineForm]:
    """How the weights that rows are multiplied with are held: as a type, a quantization or words.

    Those in blocks that are not held as words have the name of their format.
    """
    if quant is not None:
        return {quant}
    forms, stored = packed_forms(read.module, read.source), stored_formats(read.source)

    def held(name: str) -> str | AffineForm:
        if name in forms:
            return forms[name][0]
        return stored[name].name if name in stored else types(read.source.type(name)).dtype.name

    return {held(name) for name in read.module.weights()}


def prepared(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a configuration that says at its top what the model is.

    How many tokens there are is always said: much besides the model asks for it. Raises
    ``CheckpointError``.
    """
    with errors_name(checkpoint.path):
        said = named_by_timm(checkpoint.config)
        architecture = architecture_of(said)
        config = dict(architecture.prepare(said))
        tokens = architecture.defaults.get("vocab_size")
        if tokens is not None:
            config.setdefault("vocab_size", tokens)
        return replace(checkpoint, config=config)


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """A checkpoint's errors open with where it lies."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def check_layers(
    architecture: ModelDefinition, config: Mapping[str, Any], source: ParamSource
) -> None:
    """Refuse a config that says more layers than are stored, before they are built."""
    for key, prefix in architecture.layers.items():
        said = whole(config, key)
        names = (name.removeprefix(prefix) for name in source.names() if name.startswith(prefix))
        stored = len({name.partition(".")[0] for name in names})
        if said > stored:
            raise CheckpointError(
                f"config.json says {key} {said}, and tensors of {stored} layers are stored"
                f" ({prefix}0 and so on); correct it, or fetch the tensors that are missing"
            )


def architecture_of(config: Mapping[str, Any]) -> ModelDefinition:
    """The architecture that a configuration names; raises ``CheckpointError``."""
    found = config.get("model_type", "")
    nameable = isinstance(found, str) and len(found) < 100
    try:
        return definition(found if nameable else short(found))
    except UsageError as error:
        raise CheckpointError(f"config.json: {error}") from error


def unprefixed(source: ParamSource, architecture: ModelDefinition) -> ParamSource:
    """``source`` with an optional prefix (``transformer.``) taken off its names, and renamed."""
    names, prefixes = source.names(), architecture.prefixes
    found = [prefix for prefix in prefixes if any(name.startswith(prefix) for name in names)]
    if not found and not any(name in architecture.renamed for name in names):
        return source
    return _renamed(source, found[0] if found else "", architecture.renamed)


def _renamed(source: ParamSource, prefix: str, renamed: Mapping[str, str]) -> ParamSource:
    mapping: dict[str, str] = {}
    for stored in source.names():
        name = stored.removeprefix(prefix)
        name = renamed.get(name, name)
        if name in mapping:
            raise CheckpointError(
                f"tensors {mapping[name]!r} and {stored!r} are both {name!r}; keep one of them"
            )
        mapping[name] = stored
    return RenamedSource(source, mapping)
