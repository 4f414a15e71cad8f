"""What a sentence-transformers folder says besides a model's own files, from ``modules.json`` on.

The folder lists modules, each with the class that computes it and the folder of its settings. The
first one is the model; what follows pools its vectors. All of it is untrusted input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ptir.checkpoint.json_text import parse_settings, read_text
from ptir.checkpoint.paths import stays_inside
from ptir.errors import CheckpointError, short
from ptir.models.fields import whole
from ptir.models.pooling import (
    DENSE_ACTIVATIONS,
    POOLINGS,
    SENTENCE,
    Dense,
    Normalize,
    Pooling,
    SentenceModules,
    Step,
)

MODULES: Final = "modules.json"
PROMPTS: Final = "config_sentence_transformers.json"
LENGTHS: Final = "sentence_bert_config.json"
_LENGTHS: Final = "sentence_*_config.json"
"""Early folders name the file by the family."""
CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
DENSE_TENSORS: Final = ("linear.weight", "linear.bias")
"""What the file of a projection holds."""
_PACKAGE: Final = "sentence_transformers."
_MOST: Final = 32
"""Modules of a folder."""
_LEGACY: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""A key for each mode, as most folders have them, in the order in which results are joined."""


@dataclass(frozen=True)
class SentenceFiles:
    """A sentence-transformers folder: where the model lies, the settings' texts by path, weights.

    ``dense`` are the files of projections, in order. The texts are such that the model lies beside
    ``modules.json``, which may not be so in the folder.
    """

    model: Path
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    dense: tuple[Path, ...] = ()


def sentence_files(folder: Path) -> SentenceFiles:
    """The files of ``folder``; of one without ``modules.json`` it is the model's own.

    Which modules these are is not looked at, since a decoder's folder may have any. Raises
    ``CheckpointError`` for paths that leave the folder.
    """
    if not (folder / MODULES).is_file():
        return SentenceFiles(folder)
    rows = list(_modules(read_text(folder / MODULES), str(folder / MODULES)))
    model = folder / rows[0].path
    if not model.is_dir():
        raise CheckpointError(
            f"{folder / MODULES}: module 0: {short(rows[0].path)} is no folder; fetch it again"
        )
    texts = {MODULES: _listed(rows)}
    if (folder / PROMPTS).is_file():
        texts[PROMPTS] = read_text(folder / PROMPTS)
    for path in sorted(model.glob(_LENGTHS))[:1]:
        texts[LENGTHS] = read_text(path)
    for row in rows[1:]:
        settings = f"{row.path}/{CONFIG}"
        if row.path and (folder / settings).is_file():
            texts[settings] = read_text(folder / settings)
    dense = tuple(folder / path / WEIGHTS for path in dense_folders(texts))
    return SentenceFiles(model, texts, dense)


def dense_folders(texts: Mapping[str, str]) -> tuple[str, ...]:
    """Where the projections of such texts lie, in order."""
    if MODULES not in texts:
        return ()
    return tuple(row.path for row in _modules(texts[MODULES], MODULES) if row.kind == _DENSE)


def sentence_modules(texts: Mapping[str, str]) -> SentenceModules | None:
    """What settings say, None where there are none."""
    if MODULES not in texts:
        return None
    rows = list(_modules(texts[MODULES], MODULES))
    _check_known(rows, MODULES)
    found: list[Pooling | Step] = []
    for row in rows[1:]:
        read = _READERS[row.kind]
        place = f"{row.path}/{CONFIG}"
        if row.kind in (_POOLING, _DENSE) and place not in texts:
            raise CheckpointError(f"{place} is missing; fetch the folder again")
        said = parse_settings(texts.get(place, "{}"), place)
        made = read(said, place)
        found += [] if made is None else [made]
    pooling = found[0] if found and isinstance(found[0], Pooling) else None
    rest = found[1:]
    if found and (pooling is None or any(isinstance(one, Pooling) for one in rest)):
        raise CheckpointError(
            f"{MODULES} must name one Pooling, behind the model; another order is not implemented"
        )
    steps = tuple(one for one in rest if not isinstance(one, Pooling))
    lengths = parse_settings(texts.get(LENGTHS, "{}"), LENGTHS)
    settings = parse_settings(texts.get(PROMPTS, "{}"), PROMPTS)
    prompts, default = _prompts(settings, PROMPTS)
    activation = settings.get("activation_fn")
    longest = None
    if lengths.get("max_seq_length") is not None:
        longest = whole(lengths, "max_seq_length", where=LENGTHS)
    named = activation if activation is None else str(activation)
    return SentenceModules(pooling, steps, longest, prompts, default, named)


def dense_names(number: int, names: tuple[str, ...], path: Path) -> dict[str, str]:
    """How a projection's stored tensors are called in the module; what else is stored is an error.

    From our name to the stored one.
    """
    wrong = [name for name in names if name not in DENSE_TENSORS]
    if wrong:
        raise CheckpointError(
            f"{path}: holds {short(wrong[0])}; a Dense module has linear.weight and linear.bias"
        )
    return {f"{SENTENCE}.dense.{number}.{name.removeprefix('linear.')}": name for name in names}


@dataclass(frozen=True)
class _Row:
    """A module: its class as it is named, and its folder; nothing is that of ``modules.json``."""

    type: str
    path: str

    @property
    def kind(self) -> str:
        """The class without its packages, which have moved."""
        return self.type.rpartition(".")[2]


_MODEL, _POOLING, _DENSE = "Transformer", "Pooling", "Dense"


def _modules(text: str, where: str) -> Iterator[_Row]:
    """The rows of ``modules.json``: a list of objects with a type and a path."""
    rows = parse_settings(f'{{"modules": {text}}}', where)["modules"]
    if not isinstance(rows, list) or not 1 <= len(rows) <= _MOST:
        raise CheckpointError(f"{where}: must be a list of 1 to {_MOST} modules")
    for number, row in enumerate(rows):
        type_, path = (row.get(key) if isinstance(row, dict) else None for key in ("type", "path"))
        if not isinstance(type_, str) or not isinstance(path, str):
            raise CheckpointError(f"{where}: module {number} must have a type and a path, texts")
        if path and not stays_inside(path):
            raise CheckpointError(
                f"{where}: module {number}: path {short(path)} must name a folder inside the folder"
            )
        yield _Row(type_, str(PurePosixPath(path)) if path else "")


def module_texts(pooling: str) -> dict[str, str]:
    """The settings of a folder whose vectors are pooled in one way, and get the length 1."""
    folders = {"Transformer": "", _POOLING: f"1_{_POOLING}", "Normalize": "2_Normalize"}
    rows = [_Row(f"{_PACKAGE}models.{kind}", path) for kind, path in folders.items()]
    settings = {"pooling_mode": pooling}
    return {MODULES: _listed(rows), f"1_{_POOLING}/{CONFIG}": json.dumps(settings) + "\n"}


def _check_known(rows: list[_Row], where: str) -> None:
    for number, row in enumerate(rows):
        known = (_MODEL,) if number == 0 else tuple(_READERS)
        if not row.type.startswith(_PACKAGE) or row.kind not in known:
            raise CheckpointError(
                f"{where}: module {number} is {short(row.type)}, which is not implemented;"
                f" {', '.join(known)} of sentence-transformers {'is' if number == 0 else 'are'}"
            )


def _listed(rows: list[_Row]) -> str:
    """``modules.json`` again, with the model beside it."""
    found = [
        {
            "idx": number,
            "name": str(number),
            "path": row.path if number else "",
            "type": row.type,
        }
        for number, row in enumerate(rows)
    ]
    return json.dumps(found, indent=2) + "\n"


def _pooling(said: Mapping[str, Any], where: str) -> Pooling:
    if said.get("include_prompt") is False:
        raise CheckpointError(
            f"{where}: include_prompt false is not implemented; choose a model that pools prompts"
        )
    given = said.get("pooling_mode")
    if given is None:
        given = [mode for key, mode in _LEGACY.items() if said.get(key)] or ["mean"]
    modes = [given] if isinstance(given, str) else given
    if not isinstance(modes, list) or not modes or not all(map(_is_pooling, modes)):
        raise CheckpointError(
            f"{where}: pooling_mode {short(given)} is not implemented; {', '.join(POOLINGS)} are"
        )
    return Pooling(tuple(modes))


def _is_pooling(mode: object) -> bool:
    return isinstance(mode, str) and mode in POOLINGS


def _dense(said: Mapping[str, Any], where: str) -> Dense:
    activation = str(said.get("activation_function", "torch.nn.modules.activation.Tanh"))
    package, _, name = activation.rpartition(".")
    if not package.startswith("torch.nn.modules.") or name not in DENSE_ACTIVATIONS:
        raise CheckpointError(
            f"{where}: activation_function {short(activation)} is not implemented;"
            f" {', '.join(DENSE_ACTIVATIONS)} of torch.nn are"
        )
    for key, usual in (
        ("use_residual", False),
        ("module_input_name", "sentence_embedding"),
        ("module_output_name", "sentence_embedding"),
    ):
        if said.get(key, usual) not in (usual, None):
            raise CheckpointError(f"{where}: {key} {short(said[key])} is not implemented")
    inputs, outputs = (whole(said, key, where=where) for key in ("in_features", "out_features"))
    return Dense(inputs, outputs, bool(said.get("bias", True)), name)


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], str], Pooling | Step | None]]] = {
    _POOLING: _pooling,
    _DENSE: _dense,
    "Normalize": lambda said, where: Normalize(),
    "Dropout": lambda said, where: None,
}
"""What may follow the model, by the names of classes; leaving values out is for training alone."""


def _prompts(said: Mapping[str, Any], where: str) -> tuple[dict[str, str], str | None]:
    prompts, default = said.get("prompts") or {}, said.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(one, str) for one in prompts.values()):
        raise CheckpointError(f"{where}: prompts {short(prompts)} must be an object of texts")
    if default is not None and not (isinstance(default, str) and default in prompts):
        raise CheckpointError(
            f"{where}: default_prompt_name {short(default)} is none of the prompts"
            f" ({', '.join(prompts) or 'there are none'})"
        )
    return prompts, default
