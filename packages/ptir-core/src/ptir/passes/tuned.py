"""For which models `ptir tune` was run: a file beside the timed choices, ``tuned.json``.

A model in it follows the policy ``tuned`` for the functionals that were timed: what was fastest on
the device is taken, and where nothing is known of a call, or kernels have changed since, the
default.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ptir.backend.folders import ENVIRONMENT, cache_folder, replace_file
from ptir.errors import UsageError
from ptir.ops.implementations import FUNCTIONALS
from ptir.ops.policies import Override, Policy, origin
from ptir.passes.remembered import set_aside

FORMAT: Final = 1


@dataclass(frozen=True)
class Tuned:
    """That a model was tuned on some devices: the functionals that were timed for it."""

    functionals: tuple[str, ...]
    devices: tuple[str, ...]


def tuned_file() -> Path:
    """The file of the models that were tuned."""
    return cache_folder() / "tuned.json"


def tuned_models() -> dict[str, Tuned]:
    """All tuned models by the path of their checkpoint; raises ``UsageError`` if it is damaged."""
    path = tuned_file()
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["format"] != FORMAT:
            return {}
        return {name: _tuned(entry) for name, entry in held["models"].items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: not a list of tuned models ({error})") from None


def _tuned(entry: Mapping[str, Any]) -> Tuned:
    names, devices = (entry[key] for key in ("functionals", "devices"))
    if not all(isinstance(name, str) for name in (*names, *devices)):
        raise ValueError(f"{entry}")
    return Tuned(tuple(names), tuple(devices))


def remembered_models() -> dict[str, Tuned]:
    """All tuned models; a damaged file is set aside with a warning, and none counts as tuned."""
    try:
        return tuned_models()
    except UsageError as error:
        said = set_aside(tuned_file())
        warnings.warn(f"{error}; {said}, and no model counts as tuned", stacklevel=3)
        return {}


def tuned_overrides(path: str) -> tuple[Override, ...]:
    """What `ptir tune` asks for a model; nothing where it was not run for it."""
    found = remembered_models().get(path)
    if found is None:
        return ()
    source = origin("tune", f"ptir tune {path}")
    known = (name for name in found.functionals if name in FUNCTIONALS)
    return tuple(Override(name, Policy("tuned"), origin=source) for name in known)


def remember_tuned(path: str, functionals: tuple[str, ...], device: str) -> None:
    """Let a model follow what was timed for these functionals, besides those of before."""
    models = remembered_models()
    before = models.get(path, Tuned((), ()))
    names = tuple(sorted({*before.functionals, *functionals}))
    models[path] = Tuned(names, tuple(sorted({*before.devices, device})))
    write_tuned(models)


def write_tuned(models: Mapping[str, Tuned]) -> None:
    """Replace the file in one step."""
    held = {name: vars(entry) for name, entry in models.items()}
    text = json.dumps({"format": FORMAT, "models": held}, indent=1)
    try:
        replace_file(tuned_file(), text.encode())
    except OSError as error:
        said = f"{tuned_file()}: cannot be written ({error.strerror}); it is not remembered"
        warnings.warn(f"{said}; set {ENVIRONMENT} to a folder of yours", stacklevel=2)
