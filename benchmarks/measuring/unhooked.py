"""A model that decodes with and without what the hot path has for listeners, overrides, profiles.

Inside ``unhooked`` all that a run looks at for these is gone: whether anybody listens or wants
parts timed, what overrides are in force, the policies of a model. What is left is the same code
in the same process on the same memory, so that nothing but these looks differs.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np

LOOKS = 20_000
"""Runs of a plan that does nothing, to see what is looked at besides."""
ROOM = 128
"""Positions of a sequence, which starts anew before it is longer."""


@contextmanager
def unhooked() -> Iterator[None]:
    """Runs ask for no listener, no override and no policy."""
    from ptir.capture import plan
    from ptir.runtime.handle import Model

    def run(self: Any, inputs: Sequence[Any], parameters: Sequence[Any]) -> Any:
        plan._check_whole(parameters)
        return self.executable.run([*inputs, *parameters])

    def repeat(self: Any, inputs: Any, parameters: Any, feeds: Any, count: int, keep: int) -> Any:
        plan._check_whole(parameters)
        return self.executable.repeat([*inputs, *parameters], feeds, count, keep)

    gone = {
        "ptir.events.listening": lambda: False,
        "ptir.events.times_parts": lambda: False,
        "ptir.events.emit": lambda event: None,
        "ptir.capture.jit.active_overrides": tuple,
        "ptir.capture.plan.active_overrides": tuple,
    }
    patches = [mock.patch(name, instead) for name, instead in gone.items()]
    patches += [mock.patch.object(plan.Plan, "run", run)]
    patches += [mock.patch.object(plan.Plan, "repeat", repeat)]
    patches += [mock.patch.object(Model, "policies", lambda self: nullcontext())]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


class Unhooked:
    """A loaded model that decodes one sequence, a step at a time."""

    def __init__(self, model: str, backend: str, dtype: str, quant: str | None) -> None:
        import ptir

        self.model = ptir.load_model(model, backend=backend, dtype=dtype, quant=quant)
        self._session: Any = None
        self._taken = ROOM

    def _room(self, steps: int) -> None:
        from ptir.runtime.session import Session

        if self._taken + steps + 1 >= ROOM:
            self._session = None  # its state goes before the next one comes
            self._session = Session.of(self.model, 1, ROOM)
            self._session.pick(self._session.prefill([[1]]))
            self._session.advance(np.ones(1, np.bool_))
            self._taken = 2
        self._taken += steps

    def decode(self, steps: int, hooked: bool) -> float:
        """Seconds for so many tokens, each asked for by itself, as a text is read."""
        active = np.ones(1, np.bool_)
        with nullcontext() if hooked else unhooked():
            self._room(steps)
            began = time.perf_counter()
            for _ in range(steps):
                self._session.advance(active)
            return time.perf_counter() - began

    def looks(self, hooked: bool) -> float:
        """Seconds that Python takes around a step's kernels, which are left out.

        What is called is what ``decode`` calls for a step: the policies, the jitted function's key
        and the plan.
        """
        jit = importlib.import_module("ptir.capture.jit")  # its package has a function of the name
        self._room(1)
        plan = self.model.steps.advance(1, self._session.capacity).plans[-1]
        nothing = dataclasses.replace(plan, executable=Nothing())
        with nullcontext() if hooked else unhooked():
            began = time.perf_counter()
            for _ in range(LOOKS):
                with self.model.policies():
                    jit.active_overrides()
                    nothing.run((), ())
            return (time.perf_counter() - began) / LOOKS


class Nothing:
    """An executable without kernels."""

    def run(self, handles: Sequence[Any]) -> tuple[Any, ...]:
        """No outputs."""
        return ()
