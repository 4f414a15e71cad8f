"""Captured steps of GPT-2 as a peer: compiled and not run, so no weight is made."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from measuring.ours import CONTEXT


class Captured:
    """A loaded model, on a backend that has compiled something small before."""

    def __init__(self, backend: str, dtype: str, quant: str | None, fast: bool = False) -> None:
        import ptir

        self.model = ptir.load_model(
            "random:gpt2", backend=backend, dtype=dtype, quant=quant, fast=fast
        )
        target = self.model.target
        type = ptir.spec("f32", 3)
        ptir.run_program(ptir.capture(lambda x: x + x, type), {"x": np.ones(3, np.float32)}, target)

    def compiled(self, length: int) -> list[float]:
        """Seconds for capturing and for compiling a step of so many tokens."""
        from ptir.capture.plan import plan_for

        step = _captures()
        with self.model.policies():
            began = time.perf_counter()
            program = step(self.model, 1, length, CONTEXT)
            captured = time.perf_counter()
            plan_for(program, self.model.target)
            return [captured - began, time.perf_counter() - captured]


def _captures() -> Callable[..., Any]:
    """What captures a step in this tree, or in an earlier commit, which ``regression.py`` runs."""
    try:
        recorded = importlib.import_module("ptir.runtime.recorded")
    except ModuleNotFoundError:
        found: Callable[..., Any] = importlib.import_module("ptir.cli.dump").step_program
        return found
    return lambda *given: recorded.recorded_step(*given).program
