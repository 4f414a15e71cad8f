"""A run that somebody hears of: what is told before it and behind it, and what its ports hold."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ptir import events
from ptir.backend.contract import Handle, Target
from ptir.params.mapped_files import BoundParameters

if TYPE_CHECKING:
    from ptir.events import CompiledPlan

_runs: Final = itertools.count(1)

Submit = Callable[[], tuple[tuple[Handle, ...], tuple[float, ...]]]
"""Runs, and gives the outputs and the seconds of parts, where these were taken."""


def observed(
    plan: CompiledPlan,
    target: Target,
    inputs: Sequence[Handle],
    parameters: Sequence[Handle],
    submit: Submit,
) -> tuple[Handle, ...]:
    """The outputs of ``submit``; the device is waited for, and sinks hear how it went."""
    number, where = next(_runs), (target.backend.name, target.device.name)

    def arrays() -> Mapping[str, events.PortArray]:
        return _arrays(plan, target, inputs, parameters)

    events.emit(events.ProgramStarting(number, plan, *where, arrays))
    began = time.perf_counter()
    try:
        outputs, parts = submit()
        target.backend.synchronize(target.device)
    except BaseException as error:
        events.emit(events.ProgramFailed(number, f"{type(error).__name__}: {error}"))
        raise
    seconds = time.perf_counter() - began
    events.emit(events.ProgramRun(plan.optimized, *where, seconds, parts, number, plan))
    return outputs


def _arrays(
    plan: CompiledPlan, target: Target, inputs: Sequence[Handle], parameters: Sequence[Handle]
) -> Mapping[str, events.PortArray]:
    """What each port holds; parameters that nobody can name are left out."""
    ports = [port for port in plan.captured.ports if port.kind == "input"]
    found = {
        port.name: events.PortArray(partial(target.backend.download, handle, target.device))
        for port, handle in zip(ports, inputs, strict=True)
    }
    stored = parameters.stored if isinstance(parameters, BoundParameters) else {}
    for name, one in stored.items():
        found[name] = events.PortArray(partial(one.store.array, one.name), one.store.key(one.name))
    return found
