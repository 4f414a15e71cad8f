"""What is done to right folders of quantized weights: settings, tensors, and the files' bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gguf_bytes import mutated
from ptir.checkpoint import write_safetensors
from ptir.checkpoint.quantized import METHODS
from ptir.types import TensorType, dtype_of
from quantized_folders import CASES, write

Arrays = dict[str, Any]
SETTINGS: tuple[Any, ...] = (None, True, False, 0, 1, -1, 2, 3, 5, 7, 8, 16, 31, 32, 64, 96, 128)
SETTINGS += (4096, 1 << 31, 1 << 62, 10**12, 10**400, 0.5, 4.0, 1e308, float("nan"), float("inf"))
SETTINGS += ("", "4", "int", "float", "group", "channel", "tensor", "block", "é\0", "x" * 5000)
SETTINGS += ([], [1, 2], [128, 128], ["lm_head"], {}, {"bits": 4}, [[]], *METHODS)
KEYS = ("bits", "group_size", "num_bits", "strategy", "format", "quant_method", "mode", "ignore")
KEYS += ("modules_to_not_convert", "weight_block_size", "dynamic", "desc_act", "sym", "version")
KEYS += ("config_groups", "weights", "symmetric", "zero_point", "block_structure", "shape")
DTYPES = ("u1", "i1", "u2", "i2", "i4", "u4", "i8", "f2", "f4", "f8", "?")
NARROW = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


@dataclass
class Folder:
    """The configuration and the tensors."""

    config: dict[str, Any]
    tensors: Arrays


def folders(folder: Path, names: tuple[str, ...] = tuple(CASES)) -> dict[str, Folder]:
    """The right ones by name."""
    found = {}
    for name in names:
        (folder / name).mkdir(parents=True)
        made = write(folder / name, CASES[name])
        found[name] = Folder(made.config, made.tensors)
    return found


def written(right: Folder, rng: random.Random, folder: Path) -> Path:
    """A folder with one to three changes; one in eight by the bytes of its files alone."""
    changed = Folder(copy.deepcopy(right.config), dict(right.tensors))
    by_bytes = rng.randrange(8) == 0
    for _ in range(0 if by_bytes else rng.choice((1, 1, 1, 2, 3))):
        rng.choice(CHANGES)(changed, rng)
    types = {name: TensorType(dtype_of(a), a.shape) for name, a in changed.tensors.items()}
    weights, config = folder / "model.safetensors", folder / "config.json"
    write_safetensors(weights, changed.tensors.items(), types)
    config.write_text(json.dumps(changed.config), encoding="utf-8")
    if by_bytes:
        file = rng.choice((weights, config))
        file.write_bytes(mutated(file.read_bytes(), rng))
    return folder


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object within a value."""
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from _objects(one)


def _said(it: Folder) -> list[dict[str, Any]]:
    """The objects that say how weights are stored."""
    keys = ("quantization_config", "quantization")
    return [one for key in keys for one in _objects(it.config.get(key))]


def setting(it: Folder, rng: random.Random) -> None:
    objects = [one for one in _said(it) if one]
    if objects:
        chosen = rng.choice(objects)
        chosen[rng.choice(list(chosen))] = copy.deepcopy(rng.choice(SETTINGS))


def setting_near(it: Folder, rng: random.Random) -> None:
    places = [(o, k) for o in _said(it) for k, v in o.items() if type(v) is int]
    if places:
        chosen, key = rng.choice(places)
        chosen[key] += rng.choice((-chosen[key], -1, 1, 8, chosen[key]))


def setting_added(it: Folder, rng: random.Random) -> None:
    objects = _said(it)
    if objects:
        rng.choice(objects)[rng.choice(KEYS)] = copy.deepcopy(rng.choice(SETTINGS))


def setting_lost(it: Folder, rng: random.Random) -> None:
    objects = [one for one in _said(it) if one]
    if objects:
        chosen = rng.choice(objects)
        del chosen[rng.choice(list(chosen))]


def field_of_the_model(it: Folder, rng: random.Random) -> None:
    key = rng.choice(list(it.config))
    if rng.randrange(4):
        it.config[key] = copy.deepcopy(rng.choice(SETTINGS))
    else:
        del it.config[key]


def settings_of_another(it: Folder, rng: random.Random) -> None:
    other = CASES[rng.choice(list(CASES))]
    it.config[other.key] = copy.deepcopy(other.config)


def _chosen(it: Folder, rng: random.Random) -> str:
    """A tensor; most often one of a quantized module."""
    quantized = [name for name in it.tensors if "_proj." in name]
    return rng.choice(quantized if quantized and rng.randrange(5) else list(it.tensors))


def tensor_lost(it: Folder, rng: random.Random) -> None:
    del it.tensors[_chosen(it, rng)]


def tensor_renamed(it: Folder, rng: random.Random) -> None:
    name, other = _chosen(it, rng), _chosen(it, rng)
    new = name.rpartition(".")[0] + "." + other.rpartition(".")[2]
    it.tensors[rng.choice((new, f"{name}s", f".{name}", name.rpartition(".")[2]))] = it.tensors[
        name
    ]


def tensors_swapped(it: Folder, rng: random.Random) -> None:
    one, other = _chosen(it, rng), _chosen(it, rng)
    it.tensors[one], it.tensors[other] = it.tensors[other], it.tensors[one]


def shape(it: Folder, rng: random.Random) -> None:
    name = _chosen(it, rng)
    array = np.atleast_1d(it.tensors[name])
    flat = array.reshape(-1)
    new: list[Any] = [flat, array.T, array[..., None], array[None], flat[:0], flat[:1]]
    new += [array[:-1], array[1:], np.concatenate([flat, flat])]
    new += [np.zeros((0, *array.shape), array.dtype)]
    new += [flat[:1].reshape(())] if flat.size else []
    if array.ndim > 1:
        new += [array[:, :-1], np.concatenate([array, array], 1), np.concatenate([array, array])]
    it.tensors[name] = np.ascontiguousarray(rng.choice(new if flat.size else new[:3]))


def dtype(it: Folder, rng: random.Random) -> None:
    """Other elements with the same values, or of the same bytes."""
    name = _chosen(it, rng)
    array, wanted = it.tensors[name], np.dtype(rng.choice((*DTYPES, *NARROW)))
    with np.errstate(all="ignore"):
        raw = np.frombuffer(array.tobytes(), np.uint8)
        if rng.randrange(2) or raw.size % wanted.itemsize:
            it.tensors[name] = array.astype(np.float32).astype(wanted)
        else:
            found = raw & 1 if wanted == np.bool_ else raw
            it.tensors[name] = found.view(wanted)


def data(it: Folder, rng: random.Random) -> None:
    name = _chosen(it, rng)
    array = it.tensors[name]
    value = rng.choice((b"\xff", b"\0", b"\x7f", b"\x80", b"\0\0\xc0\x7f"))
    size = array.nbytes
    raw = rng.randbytes(size) if rng.randrange(2) else (value * size)[:size]
    if array.dtype != np.bool_:
        it.tensors[name] = np.frombuffer(raw, array.dtype).reshape(array.shape)


def state(it: Folder, rng: random.Random) -> None:
    """What bitsandbytes says of a weight, as JSON in a tensor."""
    names = [name for name in it.tensors if "quant_state" in name]
    if not names:
        setting(it, rng)
        return
    name = rng.choice(names)
    try:
        said = json.loads(it.tensors[name].tobytes())
    except ValueError:  # a change before has damaged it
        return
    said[rng.choice(list(said))] = rng.choice(SETTINGS)
    it.tensors[name] = np.frombuffer(json.dumps(said).encode(), np.uint8)


CHANGES: tuple[Callable[[Folder, random.Random], None], ...] = (
    *(setting, setting, setting, setting_near, setting_added, setting_added, setting_lost),
    *(field_of_the_model, settings_of_another),
    *(tensor_lost, tensor_renamed, tensors_swapped, shape, shape, dtype, data, data),
    *(state, state),
)
"""By as many places as a change is likely."""
