"""One spelling for model configurations: what Hugging Face writes in versions 4 and 5, normalised.

``NORMAL_FORM`` is the whole of it: a row per canonical key, the spellings it replaces, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir.errors import CheckpointError, short
from ptir.models.fields import FIELDS, flag, real, whole
from ptir.types import DTYPES, DType

Config = Mapping[str, Any]
FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
QUANTIZED: Final = ("quantization", "quantization_config")
"""The keys of a configuration that say how weights are quantized."""
SAMPLED: Final = "do_sample"
"""The field of ``generation_config`` that says whether those of sampling are used."""
_DEFAULT_THETA: Final = 10000.0


@dataclass(frozen=True)
class Row:
    """A canonical key, the spellings that give it, and the function from config to its value."""

    key: str
    spellings: tuple[str, ...]
    value: Callable[[Config], Any]


def normalize_config(config: Config) -> dict[str, Any]:
    """A copy of ``config`` in which each key of ``NORMAL_FORM`` has its canonical form.

    Keys without any of their spellings stay absent; other keys are kept. Normalising twice changes
    nothing. Raises ``CheckpointError`` for values of the wrong kind.
    """
    old = {spelling for row in NORMAL_FORM for spelling in row.spellings}
    result = {key: value for key, value in config.items() if key not in old}
    for row in NORMAL_FORM:
        if any(config.get(spelling) is not None for spelling in row.spellings):
            result[row.key] = row.value(config)
    return result


def stored_dtype(config: Config) -> DType | None:
    """The element type that ``dtype`` or ``torch_dtype`` names; ``None`` if absent or ``auto``."""
    name = _first(config, "dtype", "torch_dtype")
    if name in (None, "auto"):
        return None
    by_name = {dtype.numpy_name: dtype for dtype in DTYPES.values()}
    found = by_name.get(str(name).removeprefix("torch."))
    if found is None:
        raise CheckpointError(f"config: dtype {short(name)} is not one of {', '.join(by_name)}")
    return found


def with_dtype(config: Config, dtype: DType) -> dict[str, Any]:
    """A copy of ``config`` that says ``dtype``, in the spelling it already uses."""
    present = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
    return {**config, **dict.fromkeys(present, dtype.numpy_name)}


def eos_token_ids(config: Config, generation_config: Config) -> tuple[int, ...]:
    """The ids that end a text; ``generation_config`` overrides ``config``; empty when none."""
    for where, name in ((generation_config, "generation_config.json"), (config, "config.json")):
        if where.get("eos_token_id") is not None:
            return tuple(_eos(where, name))
    return ()


def ties_embeddings(config: Config, names: Iterable[str], head: str = "lm_head.weight") -> bool:
    """Whether the output head shares the embedding: the config says so, or no head is stored."""
    return flag(config, "tie_word_embeddings") or head not in names


def _first(config: Config, *keys: str) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _dtype_name(config: Config) -> str:
    dtype = stored_dtype(config)
    return dtype.numpy_name if dtype else "auto"


def _eos(config: Config, name: str = "config.json") -> list[int]:
    value = config["eos_token_id"]
    ids = value if isinstance(value, list) else [value]
    if not all(map(FIELDS["eos_token_id"].holds, ids)):
        raise CheckpointError(
            f"{name}: eos_token_id {short(value)} must be an id or a list of ids; an id is"
            f" {FIELDS['eos_token_id']}"
        )
    return list(ids)


def _layer_types(config: Config) -> list[str]:
    """As listed, or every ``sliding_window_pattern``-th layer full and the others sliding."""
    listed = config.get("layer_types")
    if listed is not None:
        if not isinstance(listed, list) or not all(isinstance(kind, str) for kind in listed):
            raise CheckpointError(f"config: layer_types {short(listed)} must be a list of names")
        return listed
    pattern, layers = whole(config, "sliding_window_pattern"), whole(config, "num_hidden_layers")
    return [SLIDING if (layer + 1) % pattern else FULL for layer in range(layers)]


def _rope(config: Config) -> dict[str, dict[str, Any]]:
    """Rotary parameters by layer type, each with ``rope_type`` and ``rope_theta``."""
    given = config.get("rope_parameters")
    if given is None:
        return _rope_v4(config)
    given = _mapping(given, "rope_parameters")
    for kind in given:  # named for a type of layer, as full_attention is
        if kind.endswith(_OF_A_TYPE):
            _mapping({} if given[kind] is None else given[kind], f"rope_parameters: {kind}")
    if any(isinstance(value, Mapping) for value in given.values()):
        rows = {kind: value for kind, value in given.items() if value is not None}
        return {kind: _rope_entry(config, _mapping(row, kind)) for kind, row in rows.items()}
    return {kind: _rope_entry(config, given) for kind in _kinds(config)}


def _rope_v4(config: Config) -> dict[str, dict[str, Any]]:
    found = config.get("rope_scaling")
    scaling = _mapping({} if found is None else found, "rope_scaling")
    by_kind = {kind: _rope_entry(config, scaling) for kind in _kinds(config)}
    local = config.get("rope_local_base_freq")
    if local is not None:
        by_kind[SLIDING] = _rope_entry(config, {"rope_theta": local})
    return by_kind


def _rope_entry(config: Config, given: Config) -> dict[str, Any]:
    kind = _first(given, "rope_type", "type") or "default"
    thetas = (_first(where, "rope_theta", "rotary_emb_base") for where in (given, config))
    theta = next((found for found in thetas if found is not None), _DEFAULT_THETA)
    theta = real({"model_type": config.get("model_type"), "rope_theta": theta}, "rope_theta")
    shared = _first(config, "partial_rotary_factor", "rotary_pct")
    extra = {} if shared is None else {"partial_rotary_factor": shared}
    rest = {key: value for key, value in given.items() if key != "type"}
    return {**extra, **rest, "rope_type": kind, "rope_theta": theta}


def _kinds(config: Config) -> tuple[str, ...]:
    """The types of layers; one for a list of none, which the family's reader refuses."""
    spelled = _first(config, "layer_types", "sliding_window_pattern")
    found = () if spelled is None else tuple(dict.fromkeys(_layer_types(config)))
    return found or (FULL,)


def _ties(config: Config) -> bool:
    """``tie_embedding`` is how early files of LFM2 spell it, beside a default of the other."""
    return flag(config, "tie_embedding", flag(config, "tie_word_embeddings"))


def _mapping(value: Any, key: str) -> Config:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"config: {key} {short(value)} must be an object")
    return value


_OF_A_TYPE: Final = "_attention"
_ROPE_SPELLINGS: Final = (
    *("rope_parameters", "rope_theta", "rope_scaling", "rope_local_base_freq"),
    *("rotary_emb_base", "rotary_pct"),
)

#: Every key with more than one spelling.
NORMAL_FORM: Final = (
    Row("dtype", ("dtype", "torch_dtype"), _dtype_name),
    Row("eos_token_id", ("eos_token_id",), _eos),
    Row("layer_types", ("layer_types", "sliding_window_pattern"), _layer_types),
    Row("rope_parameters", _ROPE_SPELLINGS, _rope),
    Row("tie_word_embeddings", ("tie_embedding", "tie_word_embeddings"), _ties),
)


def named_templates(texts: Mapping[str, str]) -> str | list[dict[str, str]]:
    """Chat templates by name as ``tokenizer_config.json`` has them: one alone is its text."""
    if [*texts] == ["default"]:
        return texts["default"]
    return [{"name": name, "template": text} for name, text in texts.items()]
