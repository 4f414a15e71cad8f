"""Models to GGUF files and back: what ``ptir convert`` and ``ptir quantize`` do."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from ptir.checkpoint import Checkpoint
from ptir.checkpoint.config import FULL, normalize_config
from ptir.checkpoint.gguf import GgufTensor, Outgoing, write_gguf
from ptir.checkpoint.gguf.architectures.layout import (
    EMBEDDING,
    FACTORS,
    LONGROPE,
    NUMBERS,
    Layout,
)
from ptir.checkpoint.gguf.described import LAYERS, architecture_metadata, layout_for
from ptir.checkpoint.gguf.fields import Keys
from ptir.checkpoint.gguf.mixtures import Mixture, Replaced
from ptir.checkpoint.gguf.opening import turning_in_part
from ptir.checkpoint.gguf.pooling import described_pooling
from ptir.checkpoint.gguf.sampling import sampling_metadata
from ptir.checkpoint.gguf.tensor_types import TYPES
from ptir.checkpoint.gguf.write import TYPE_IDS, sized
from ptir.checkpoint.save import refuse_file
from ptir.errors import CheckpointError, UsageError
from ptir.models import definition
from ptir.models.divisors import DIVIDED
from ptir.models.encoder import Encoder
from ptir.models.gpt_oss import GptOssBlock
from ptir.models.mixture import SparseBlock
from ptir.models.nextn import HEADS
from ptir.models.rotation import PROPORTIONAL
from ptir.params.source import ParamSource, stored_formats
from ptir.runtime.gguf_encoder import as_written
from ptir.runtime.gguf_linear import as_stored
from ptir.runtime.gguf_tensors import Chosen, Mixed, Progress, Written, floats, mixed, reported
from ptir.runtime.gguf_text import name_of, text_metadata
from ptir.runtime.load import Described, described, prepared
from ptir.types import DType
from ptir.weights import WeightFormat

if TYPE_CHECKING:
    from ptir.runtime.calibration import Calibrated

Calibrate: TypeAlias = (
    "Callable[[Checkpoint, Described, Mapping[str, WeightFormat], Collection[str]], Calibrated]"
)
"""Quantizes the parameters that are to have formats; those of the collection may be changed."""

FILE_TYPES: Final[Mapping[str, int]] = {"F32": 0, "F16": 1, "BF16": 32}
"""``general.file_type`` by the type of most weights."""
QUANTIZATION_VERSION: Final = 2
"""``general.quantization_version``: of the layouts of ggml's blocks."""
DERIVED: Final = {
    "n_inner": "inner",
    **dict.fromkeys(
        ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "rms_norm_eps"), "epsilon"
    ),
    "ffn_hidden_size": "intermediate_size",
    "num_key_value_heads": "groups",
    "num_kv_heads": "groups",
    "use_parallel_residual": "parallel",
}
"""Fields of a configuration, and what models call them when they are complete."""
SCALED: Final = (DIVIDED, "llama3")
"""The scalings of positions that are divisors of frequencies in a file."""
UNTURNED: Final = 1e30
"""What divides the frequency of a pair that does not rotate."""
FILE_TYPE: Final = "general.file_type"
QUANTIZED_BY: Final = "general.quantization_version"
OF_BLOCKS: Final = (FILE_TYPE, QUANTIZED_BY, "quantize.")
"""Beginnings of keys that tell how weights were quantized."""
_CLOSE: Final = 1e-5


def save_gguf(
    checkpoint: Checkpoint,
    path: str | Path,
    *,
    dtype: DType | None = None,
    mixture: Mixture | None = None,
    calibrate: Calibrate | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    told: Callable[[Sequence[Replaced]], None] | None = None,
) -> Path:
    """Write ``checkpoint`` as one GGUF file: configuration, weights and tokenizer.

    ``dtype`` converts floats, ``mixture`` quantizes matrices; vectors are f32 and blocks stay as
    they are stored. ``calibrate`` says how matrices are quantized, once all else is checked; they
    are rounded to nearest without. ``progress`` is told how many weights of all are written, and
    ``told``, before any is, which matrices get another type than the mixture's. Raises
    ``CheckpointError`` for what a file cannot say, and when ``path`` exists and ``overwrite`` is
    not given, ``UsageError`` for quantizing what is quantized, ``QuantizationError`` for weights
    that a format cannot hold; what was there is then still there.
    """
    path = Path(path)
    refuse_file(path, overwrite)
    checkpoint = prepared(checkpoint)
    architecture, layout = layout_for(checkpoint.config.get("model_type"))
    checkpoint = as_written(checkpoint, layout) if layout.encodes else as_stored(checkpoint)
    read = described(checkpoint)
    if layout.encodes:  # its tensors are those of the file, some of which are parts of a parameter
        read = replace(read, source=checkpoint.source)
    if mixture is not None:
        refuse_quantized(checkpoint.path, read.source)
    if layout.encodes and calibrate is not None:
        raise UsageError(
            f"{checkpoint.path}: is an encoder, whose weights are not calibrated for a text: round"
            " to nearest (--method rtn)"
        )
    if dtype is None and mixture is None:
        refuse_foreign(checkpoint.path, read.source)
    config = _complete(checkpoint, read)
    rope = None if layout.encodes else _rope(checkpoint, read)
    written = _written(read, layout, config)
    chosen: Chosen = floats(dtype) if mixture is None else _mixed(mixture, written)
    parameters, factors = written.tensors(chosen), [*_factors(read, rope)]
    tensors = [*parameters, *factors]
    is_same = dtype is None and mixture is None
    metadata = {
        **sampling_metadata(checkpoint.generation_config, checkpoint.path),
        **_kept(checkpoint, is_same),
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": name_of(checkpoint),
        **architecture_metadata(architecture, layout, config, rope),
        **(_pooled(architecture, checkpoint, config) if layout.encodes else {}),
        **text_metadata(checkpoint, architecture, config, layout.encodes),
    }
    kind = next(one.type for one in tensors if one.name == EMBEDDING)
    if mixture is not None:
        metadata[FILE_TYPE] = mixture.file_type
        metadata[QUANTIZED_BY] = QUANTIZATION_VERSION
    elif kind in FILE_TYPES and not (is_same and FILE_TYPE in metadata):
        metadata[FILE_TYPE] = FILE_TYPES[kind]
    _check(path, read, layout, Keys(path, metadata, architecture), tensors)
    if told is not None and isinstance(chosen, Mixed):
        told(chosen.replaced(parameters))
    if calibrate is not None and mixture is not None:
        found = calibrate(checkpoint, read, written.formats(parameters), frozenset(written.names))
        tensors = [*written.tensors(chosen, found), *factors]
    write_gguf(path, metadata, tensors if progress is None else reported(tensors, progress))
    return path


def _kept(checkpoint: Checkpoint, is_same: bool) -> dict[str, Any]:
    """What a GGUF file says beside its model and its tokenizer; ``is_same``: its blocks stay."""
    gone = () if is_same else OF_BLOCKS
    said = checkpoint.file_metadata.items()
    return {key: sized(value) for key, value in said if not key.startswith(gone)}


def _pooled(architecture: str, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that say how a vector is made of a text."""
    found = described_pooling(checkpoint.sentence_files, config)
    return {key if "." in key else f"{architecture}.{key}": one for key, one in found.items()}


def _written(read: Described, layout: Layout, config: Mapping[str, Any]) -> Written:
    """The parameters; of an encoder the tensors, some of which are parts of a parameter."""
    names = read.source.names() if layout.encodes else tuple(read.module.parameters())
    return Written(names, read.source, layout, config)


def _mixed(mixture: Mixture, written: Written) -> Mixed:
    layers = next(int(written.config[key]) for key in LAYERS if key in written.config)
    return mixed(mixture, written, layers)


def refuse_quantized(path: Path, source: ParamSource) -> None:
    """Raise ``UsageError`` where weights are in few bits already."""
    stored = sorted({format.name for format in stored_formats(source).values()})
    if stored:
        raise UsageError(
            f"{path}: has weights in {', '.join(stored)} already and would lose once more: quantize"
            " the model that it was made from, or write its numbers as floats first (ptir convert"
            " MODEL FOLDER)"
        )


def refuse_foreign(path: Path, source: ParamSource) -> None:
    """Raise ``CheckpointError`` where weights are in formats that GGUF files do not have."""
    foreign = {one.name for one in stored_formats(source).values()} - TYPE_IDS.keys()
    if foreign:
        raise CheckpointError(
            f"{path}: has weights in {', '.join(sorted(foreign))}, which GGUF files do not have:"
            " write their numbers as floats (--dtype f16), or quantize the model that it was made"
            " from (ptir quantize)"
        )


def _rope(checkpoint: Checkpoint, read: Described) -> dict[str, Any] | None:
    """The rotation of layers that see the whole text; None for a model that rotates nothing."""
    config = _rotating(read.module.config)
    if not hasattr(config, "rotations") and not getattr(config, "frequencies", ()):
        return None
    said = normalize_config(checkpoint.config).get("rope_parameters")
    if not said:
        usual = read.architecture.defaults.get("rope_parameters")
        said = normalize_config({"rope_parameters": usual})["rope_parameters"] if usual else {}
    return {"rope_theta": 10000.0, **said.get(FULL, {})}


def _facts(module: Any) -> dict[str, Any]:
    """All that shapes a model's computation: its configuration's fields, and what it has beside."""
    if isinstance(module, Encoder):
        head = asdict(module.head_kind) if module.head_kind else None
        return {**asdict(cast(Any, module).config), "classes": module.classes, "head": head}
    found = _computed(module)
    experts = tuple(map(experts_of, getattr(module, "layers", ())))
    return {**found, "experts": experts} if any(experts) else found


def _computed(module: Any) -> dict[str, Any]:
    """The fields of a model's configuration, and of what it says of each layer besides."""
    options = getattr(module, "options", None)
    found = _flat(asdict(module.config))
    return found if options is None else {**found, **asdict(options)}


def experts_of(block: Any) -> dict[str, Any]:
    """What a layer's experts are, however they store weights; nothing where it has none."""
    if isinstance(block, SparseBlock):
        return asdict(replace(block.mixture, fused=False))
    if isinstance(block, GptOssBlock):
        mixture, alpha, limit = block.made
        return {**asdict(replace(mixture, fused=False)), "alpha": alpha, "limit": limit}
    return {}


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, value in fields.items():
        found |= _flat(value) if isinstance(value, Mapping) else {field: value}
    return found


def _complete(checkpoint: Checkpoint, read: Described) -> dict[str, Any]:
    """The configuration with what it leaves to the architecture."""
    stated = definition(str(checkpoint.config["model_type"])).defaults
    if isinstance(read.module, Encoder):
        return {**stated, **checkpoint.config, "num_labels": read.module.classes}
    known = _computed(read.module)
    derived = {field: known[ours] for field, ours in DERIVED.items() if ours in known}
    derived[HEADS] = int(getattr(read.module, "mtp", None) is not None)
    derived["rotary_dim"] = 2 * len(known.get("frequencies", ()))
    return {**stated, **checkpoint.config, **known, **derived}


def _factors(read: Described, rope: Mapping[str, Any] | None) -> Iterator[Outgoing]:
    """By what frequencies are divided that keys cannot say."""
    if rope is None:
        return
    kind = rope.get("rope_type", "default")
    if kind == "longrope":
        for field, name in LONGROPE.items():
            yield _numbers(name, rope[field])
    if kind not in (*SCALED, PROPORTIONAL):
        return
    found = _whole_rotation(_rotating(read.module.config)).frequencies
    size = 2 * len(found)
    plain = [float(rope["rope_theta"]) ** (-2 * pair / size) for pair in range(len(found))]
    pairs = zip(plain, found, strict=True)
    yield _numbers(FACTORS, [one / other if other else UNTURNED for one, other in pairs])


def _numbers(name: str, values: Sequence[float]) -> Outgoing:
    """A tensor of few numbers."""
    import numpy as np

    found = np.array(values, np.float32)
    return Outgoing(name, "F32", found.shape, lambda: [found])


def _rotating(config: Any) -> Any:
    """The part of a model's configuration that says how heads of attention are rotated."""
    return getattr(config, "full", config)


def _whole_rotation(config: Any) -> Any:
    """The rotation of layers that see the whole text."""
    if not hasattr(config, "rotations"):
        return config
    windows = getattr(config, "windows", (None,) * len(config.rotations))
    pairs = [(one, window) for one, window in zip(config.rotations, windows, strict=True) if one]
    return next((one for one, window in pairs if window is None), pairs[0][0])


def _check(
    path: Path, read: Described, layout: Layout, keys: Keys, tensors: list[Outgoing]
) -> None:
    """Refuse a model that the file would describe as another one."""
    as_stored = {one.name: GgufTensor(TYPES[TYPE_IDS[one.type]], one.shape, 0) for one in tensors}
    config = layout.config(keys, as_stored)
    _divide(config, tensors, str(path))
    architecture = definition(layout.model_type)
    again = _facts(
        architecture.build({**architecture.defaults, "model_type": layout.model_type, **config})
    )
    for field, wanted in _facts(read.module).items():
        if field == "rotations" and FACTORS in as_stored:
            continue
        if not _alike(again[field], wanted):
            raise CheckpointError(
                f"{path}: a GGUF file of this architecture says {field} {again[field]!r} and the"
                f" model has {wanted!r}: convert to a folder or to a .safetensors file"
            )


def _divide(config: dict[str, Any], tensors: list[Outgoing], where: str) -> None:
    """Put into a configuration what tensors say of frequencies, as reading a file does."""
    held = {one.name: next(iter(one.chunks())).tolist() for one in tensors if one.name in NUMBERS}
    rope = config.get("rope_parameters")
    if rope is None:
        return
    rope |= {field: held[name] for field, name in LONGROPE.items() if name in held}
    if FACTORS in held and "rope_type" not in rope:
        rope[FULL] |= turning_in_part(held[FACTORS], where)
    elif FACTORS in held:
        rope["rope_type"] = "default"


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_CLOSE)
    return bool(one == other)
