"""For which models `ptir tune` was run: a file beside the timed choices, ``tuned.json``.

On a device that a model was tuned on, the functionals that were timed follow the policy ``tuned``:
what was fastest there is taken, and where nothing is known of a call, or kernels have changed
since, what weaker overrides say, else the default.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from ptir.backend.folders import ENVIRONMENT, cache_folder, replace_file
from ptir.errors import UsageError
from ptir.ops.implementations import FUNCTIONALS, functional
from ptir.ops.policies import Condition, Override, Policy, origin
from ptir.passes.remembered import choices_changed, remembered, set_aside, write_records

FORMAT: Final = 2
ALL: Final = "all"
"""Instead of a functional: every one, and that models were tuned."""

Tuned: TypeAlias = dict[str, tuple[str, ...]]
"""What a model was tuned for: by device (``c:0``) the functionals that follow what was timed."""


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
    lists = [names for names in entry.values() if isinstance(names, list)]
    if len(lists) < len(entry) or not all(isinstance(name, str) for one in lists for name in one):
        raise ValueError(f"{entry}")
    return {device: (*names,) for device, names in entry.items()}


def remembered_models() -> dict[str, Tuned]:
    """All tuned models; a damaged file is set aside with a warning, and none counts as tuned."""
    try:
        return tuned_models()
    except UsageError as error:
        said = set_aside(tuned_file())
        warnings.warn(f"{error}; {said}, and no model counts as tuned", stacklevel=3)
        return {}


def tuned_overrides(path: str) -> tuple[Override, ...]:
    """What `ptir tune` asks for a model on the devices it was run on; else nothing."""
    source = origin("tune", f"ptir tune {path}")
    return tuple(
        Override(name, Policy("tuned"), (Condition("backend", "=", (device,)),), source)
        for device, names in remembered_models().get(path, {}).items()
        for name in names
        if name in FUNCTIONALS
    )


def remember_tuned(path: str, functionals: tuple[str, ...], device: str) -> None:
    """Let a model follow what was timed for these functionals on a device, and for no others."""
    models = remembered_models()
    models[path] = {**models.get(path, {}), device: functionals}
    write_tuned(models)
    choices_changed()


def write_tuned(models: Mapping[str, Tuned]) -> None:
    """Replace the file in one step."""
    text = json.dumps({"format": FORMAT, "models": models}, indent=1)
    try:
        replace_file(tuned_file(), text.encode())
    except OSError as error:
        said = f"{tuned_file()}: cannot be written ({error.strerror}); it is not remembered"
        warnings.warn(f"{said}; set {ENVIRONMENT} to a folder of yours", stacklevel=2)


def forget_timed(which: str) -> int:
    """Forget what was timed for a functional, or ``ALL`` with the tuned models; how many choices.

    What this process compiled by them is made anew when it runs again. Raises ``UsageError`` for
    an unknown functional.
    """
    before = remembered()
    if which != ALL:
        functional(which)
    kept = [one for one in before if which not in (ALL, one.functional)]
    if len(kept) < len(before):
        write_records(kept)
    if which == ALL:
        write_tuned({})
    choices_changed()
    return len(before) - len(kept)
