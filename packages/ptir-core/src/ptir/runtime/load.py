"""From a model spec to a model handle: architecture, parameters, tokenizer, placement."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptir import plugins
from ptir.backend.contract import Target
from ptir.capture import Tensor
from ptir.capture.creation import parameter
from ptir.capture.lazy import default_target
from ptir.checkpoint import (
    Checkpoint,
    check_parameters,
    eos_token_ids,
    normalize_config,
    ties_embeddings,
)
from ptir.errors import CheckpointError, UsageError, short, unknown_name
from ptir.functional.linear import QuantizedWeight
from ptir.models import ModelDefinition, definition
from ptir.models.fields import whole
from ptir.params.quantized import QuantizedSource, quantization, quantized_names, zero_point
from ptir.params.source import BlockSource, ParamSource, RenamedSource, stored_formats
from ptir.params.store import ParamStore
from ptir.runtime.fast import fast_policies
from ptir.runtime.handle import Model
from ptir.runtime.specs import resolve
from ptir.runtime.tokenizer import CheckpointText, text_of
from ptir.types import DType
from ptir.types import dtype as dtype_named

if TYPE_CHECKING:
    from ptir.weights.affine_form import AffineForm

STORAGE = ("f32", "bf16", "f16")
"""What parameters can be stored as on a device."""


def load_model(
    model: str | os.PathLike[str],
    *,
    backend: Any = None,
    dtype: str = "f32",
    quant: str | None = None,
    fast: bool = False,
    cache_dtype: str = "f32",
    seed: int = 0,
    overrides: Mapping[str, str] | None = None,
) -> Model:
    """Open a model; parameters are read when the first program needs them.

    ``model`` is a spec (``demo``, a folder, a file, a hub id, ``random:NAME``), ``dtype`` the
    storage type of floating-point parameters on the device, ``quant`` a quantization (``int8`` or
    ``int4``) of the weights that rows are multiplied with, ``cache_dtype`` the type of the key and
    value cache (``f32``, ``f16``, ``bf16``), ``seed`` the one of random weights. ``fast`` rounds
    activations for the processor's dot instructions (docs/reference/accuracy.md); it is an error
    where there are none for the format. ``overrides`` add to those in the checkpoint's config
    (``ptir_overrides``) and to what ``fast`` chooses; policies that are in force when the model
    runs (``with ptir.overrides(...)``) win over all. Raises ``CheckpointError``, ``UsageError``,
    ``UnsupportedError`` or ``BackendUnavailable``.
    """
    began = time.perf_counter()
    plugins.ensure_installed()
    checkpoint = resolve(os.fspath(model), seed=seed)
    storage, cached = _storage(dtype, "storage"), _storage(cache_dtype, "cache")
    with _errors_name(checkpoint.path):
        read = described(checkpoint)
    target = default_target(backend)
    if fast:
        _refuse_fast(read.source)
    chosen = fast_policies(storage, quant, target) if fast else {}
    store, bound = _bound(read.module, read.source, target, storage, quant)
    return Model(
        name=os.fspath(model),
        checkpoint=checkpoint,
        module=bound,
        store=store,
        target=target,
        text=read.text,
        context=read.context,
        overrides={**read.policies, **chosen, **(overrides or {})},
        load_seconds=time.perf_counter() - began,
        cache_dtype=cached,
    )


@dataclass(frozen=True)
class Described:
    """What a checkpoint describes: all of it read and checked, and no weight touched.

    ``source`` has the names of the unbound ``module``'s parameters.
    """

    source: ParamSource
    module: Any
    context: int
    policies: Mapping[str, str]
    text: CheckpointText


def described(checkpoint: Checkpoint) -> Described:
    """Read and check a checkpoint's files but its weights; raises ``CheckpointError``."""
    architecture = _architecture(checkpoint)
    config = {**architecture.defaults, **normalize_config(checkpoint.config)}
    source = unprefixed(checkpoint.source, architecture)
    check_layers(architecture, config, source)
    tied = ties_embeddings(config, source.names())
    module = architecture.build({**config, "tie_word_embeddings": tied})
    ignored = (*architecture.ignored, *(architecture.tied if tied else ()))
    check_parameters(module.parameters(), source, ignore=ignored, said_by=checkpoint.said_by)
    eos_token_ids(checkpoint.config, checkpoint.generation_config)
    return Described(
        source=source,
        module=module,
        context=architecture.context(config),
        policies=_configured_overrides(config),
        text=text_of(checkpoint),
    )


def _bound(
    module: Any, source: ParamSource, target: Target, storage: DType, quant: str | None
) -> tuple[ParamStore, Any]:
    """The store and the module with its parameters.

    Weights are as they are, in words where they are stored in blocks, or quantized while they load.
    """
    if quant is not None:
        return _quantized(module, source, target, storage, quant)
    forms = _packed_forms(module, source)
    if not forms or not isinstance(source, BlockSource):
        store = ParamStore(source, target, storage)
        return store, module.bind(lambda name: parameter(store, name))
    from ptir.params.packed import PackedSource, part_name
    from ptir.params.parted import WORDS

    packed = PackedSource(source, forms)
    parts = ParamStore(packed, target, storage, packed.keep_dtype)

    def resolve(name: str) -> Tensor | QuantizedWeight:
        if name not in forms:
            return parameter(parts, name)
        form, axis = forms[name]
        held = {
            part: parameter(parts, part_name(name, form, part)) for part in (WORDS, *form.parts)
        }
        return in_words(form, axis, held)

    return parts, module.bind(resolve)


def in_words(form: AffineForm, axis: int, held: Mapping[str, Tensor]) -> QuantizedWeight:
    """The weight whose words, scales and minima, by their names in a form, are ``held``."""
    return QuantizedWeight(
        axis=axis,
        bits=form.bits,
        group=form.group,
        zero=form.zero,
        table=form.table,
        factor=form.scale.factor,
        code=form.scale.code,
        sharing=form.sharing,
        **held,
    )


def _refuse_fast(source: ParamSource) -> None:
    stored = {format.name for format in stored_formats(source).values()}
    if stored:
        raise UsageError(
            f"fast: weights in {', '.join(sorted(stored))} have no dot implementation here; leave"
            " --fast out"
        )


def _packed_forms(module: Any, source: ParamSource) -> dict[str, tuple[AffineForm, int]]:
    """The weights whose blocks become words, and the axis of their inputs.

    What else is stored in blocks is expanded to floats when it is read.
    """
    stored = stored_formats(source)
    if not stored:
        return {}
    from ptir.weights.affine_form import affine_form

    axes = module.block_weights()
    found: dict[str, tuple[AffineForm, int]] = {}
    for name, format in stored.items():
        form = affine_form(format) if name in axes else None
        if form is not None:
            found[name] = form, axes[name]
    return found


def _quantized(
    module: Any, source: ParamSource, target: Target, storage: DType, quant: str
) -> tuple[ParamStore, Any]:
    how, weights = quantization(quant), module.weights()
    stored = {format.name for format in stored_formats(source).values()}
    if stored:
        raise UsageError(
            f"quant {quant!r}: the file has weights in {', '.join(sorted(stored))} already; leave"
            " --quant out"
        )
    quantized = QuantizedSource(source, how, weights)
    packed = ParamStore(quantized, target, storage, quantized.keep_dtype)

    def resolve(name: str) -> Tensor | QuantizedWeight:
        if name not in weights:
            return parameter(packed, name)
        both = quantized_names(name, how)
        words, scale = parameter(packed, both.words), parameter(packed, both.scale)
        return QuantizedWeight(words, scale, weights[name], how.bits, how.group, zero_point(how))

    return packed, module.bind(resolve)


def _storage(name: str, what: str) -> DType:
    if name not in STORAGE:
        raise UsageError(unknown_name(f"{what} dtype", name, STORAGE))
    return dtype_named(name)


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """A checkpoint's errors open with where it lies."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def check_layers(
    architecture: ModelDefinition, config: Mapping[str, Any], source: ParamSource
) -> None:
    """Refuse a config that says more layers than are stored, before they are built."""
    if architecture.layers is None:
        return
    key, prefix = architecture.layers
    said = whole(config, key)
    names = (name.removeprefix(prefix) for name in source.names() if name.startswith(prefix))
    stored = len({name.partition(".")[0] for name in names})
    if said > stored:
        raise CheckpointError(
            f"config.json says {key} {said}, and tensors of {stored} layers are stored"
            f" ({prefix}0 and so on); correct it, or fetch the tensors that are missing"
        )


def _architecture(checkpoint: Checkpoint) -> ModelDefinition:
    found = checkpoint.config.get("model_type", "")
    nameable = isinstance(found, str) and len(found) < 100
    try:
        return definition(found if nameable else short(found))
    except UsageError as error:
        raise CheckpointError(f"config.json: {error}") from error


def _configured_overrides(config: Mapping[str, Any]) -> dict[str, str]:
    found = config.get("ptir_overrides", {})
    if not isinstance(found, Mapping):
        raise CheckpointError(f"config.json: ptir_overrides {found!r} is not an object")
    return {str(name): str(policy) for name, policy in found.items()}


def unprefixed(source: ParamSource, architecture: ModelDefinition) -> ParamSource:
    """``source`` with an optional prefix (``transformer.``) taken off its names."""
    for prefix in architecture.prefixes:
        if any(name.startswith(prefix) for name in source.names()):
            return _renamed(source, prefix)
    return source


def _renamed(source: ParamSource, prefix: str) -> ParamSource:
    mapping: dict[str, str] = {}
    for stored in source.names():
        name = stored.removeprefix(prefix)
        if name in mapping:
            raise CheckpointError(
                f"tensors {mapping[name]!r} and {stored!r} are both {name!r}; keep one of them"
            )
        mapping[name] = stored
    return RenamedSource(source, mapping)
