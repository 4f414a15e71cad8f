"""Right folders of every family in which one value of ``config.json`` is another.

Those that lie in a ``text_config``, beside a part that sees, are families of their own here.
"""

from __future__ import annotations

import copy
import json
import math
import random
import shutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ptir.checkpoint import save_folder
from ptir.models.table import MODELS, load_modules
from ptir.runtime.specs import random_checkpoint

VALUES: tuple[Any, ...] = (
    *(0, -1, 10**12, 10**400, 1e30, math.inf, math.nan),
    *("text", [1], {}, None, True),
)
NESTED = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "mistral3": "ministral3",
    "mistral3 of mistral": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Families whose configuration holds that of another as its ``text_config``."""
Place = tuple[str | int, ...]


class Change(NamedTuple):
    """A right folder, the place of a value in its configuration, and what stands there instead."""

    folder: Path
    place: Place
    value: Any


def smallest() -> dict[str, str]:
    """The smallest preset of each family."""
    load_modules()
    found: dict[str, str] = {}
    for family, model in MODELS.items():
        names = [name for name in model.presets if name.endswith("-micro")]
        names += [name for name in model.presets if name.endswith("-tiny")]
        found |= {family: names[0]} if names else {}
    return found | {outer: found[inner] for outer, inner in NESTED.items()}


def folders(folder: Path, families: Collection[str] = ()) -> dict[str, Change]:
    """Every value of every family's configuration, or of some families', as every other one.

    They stand in an order of their own, so that any run of them has a little of all.
    """
    made: dict[str, Change] = {}
    presets = smallest()
    for family in families or presets:
        given = random_checkpoint(presets[family], 0)
        whole = {**MODELS[NESTED.get(family, family)].defaults, **given.config}
        path = save_folder(replace(given, config=whole), folder / family)
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if family in NESTED:
            config = {"model_type": family.partition(" ")[0], "text_config": config}
            (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for place in places(config):
            called = f"{family}: {'.'.join(map(str, place))}"
            made |= {f"{called} {value!r}": Change(path, place, value) for value in VALUES}
    names = list(made)
    random.Random(0).shuffle(names)
    return {name: made[name] for name in names}


def places(value: Any, before: Place = ()) -> Iterator[Place]:
    """The places of all within a value, from the outside; of a list the first alone."""
    if before:
        yield before
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, (*before, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*before, 0))


def written(change: Change, rng: random.Random, folder: Path) -> Path:
    """A copy of the folder with the change in it."""
    shutil.copytree(change.folder, folder, dirs_exist_ok=True)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    held = config
    for part in change.place[:-1]:
        held = held[part]
    held[change.place[-1]] = copy.deepcopy(change.value)
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder
