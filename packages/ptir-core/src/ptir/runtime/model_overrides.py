"""The overrides of a model: its family's, its checkpoint's, and those that loading asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptir.errors import CheckpointError
from ptir.models.table import ModelDefinition
from ptir.ops.overriding import overrides_from
from ptir.ops.policies import Overrides, merged, origin
from ptir.passes.tuned import tuned_overrides


def configured_overrides(config: Mapping[str, Any]) -> dict[str, str]:
    """What ``ptir_overrides`` in a config.json asks for; raises ``CheckpointError``."""
    found = config.get("ptir_overrides", {})
    if not isinstance(found, Mapping):
        raise CheckpointError(f"config.json: ptir_overrides {found!r} is not an object")
    return {str(name): str(policy) for name, policy in found.items()}


def model_overrides(
    path: str,
    family: ModelDefinition,
    configured: Mapping[str, str],
    fast: Mapping[str, str],
    given: Mapping[str, str],
) -> Overrides:
    """Everything that is asked for one model, each with its origin; raises ``UsageError``.

    Those of `ptir tune` are among them where it was run for the checkpoint at ``path``.
    """
    groups = (
        overrides_from(family.overrides, origin("family", f"the models of {family.model_type}")),
        tuned_overrides(path),
        overrides_from(configured, origin("checkpoint", f"{path} (ptir_overrides)")),
        overrides_from(fast, origin("argument", "--fast, load_model(fast=True)")),
        overrides_from(given, origin("argument", "load_model(overrides=)")),
    )
    return merged(*groups)
