"""Several cases compiled at once: most of what a small program costs is the start of a compiler.

A generated backend makes one source file of what ``Backend.compile_all`` is given. What cannot be
compiled together is compiled case by case, so that each row says what it would say alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from ptir.backend import Backend, Device, Executable, Options, Target
from ptir.backend.interpreter import query_of
from ptir.ir.program import Program
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.running.execute import Setting, options_of, run_case
from ptir_testsuite.running.outcomes import Row

Order = tuple[Program, Options]

AT_ONCE: Final = 48
"""Programs of one source file; more gain nothing, and what is wrong in one costs all of them."""


def run_cases(cases: Sequence[Case], setting: Setting) -> Iterator[Row]:
    """A row for every case, in order, of programs that were compiled many at once."""
    for first in range(0, len(cases), AT_ONCE):
        some = cases[first : first + AT_ONCE]
        ready = Compiled(setting.target)
        ready.compile_all_of(some)
        target = Target(cast(Backend, ready), setting.target.device)
        yield from (run_case(case, replace(setting, target=target)) for case in some)


class Compiled:
    """A backend that has compiled some programs already; in all else it is that backend."""

    def __init__(self, target: Target) -> None:
        self._backend, self._device = target.backend, target.device
        self._ready: dict[Order, Executable] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def compile_all_of(self, cases: Sequence[Case]) -> None:
        """Compile the programs of those cases that the backend takes, if they go together."""
        orders = [(case.program, options_of(case)) for case in cases if self._takes(case)]
        self._compile_all(list(dict.fromkeys(orders)))

    def _compile_all(self, orders: Sequence[Order]) -> None:
        """Compile programs at once; where that fails, halves of them, down to those that fail."""
        try:
            made = self._backend.compile_all(orders, self._device) if orders else []
        except Exception:  # noqa: BLE001  it is compiled again alone: its row says what is wrong
            for half in (orders[: len(orders) // 2], orders[len(orders) // 2 :]):
                if len(orders) > 1:
                    self._compile_all(half)
            return
        self._ready |= dict(zip(orders, made, strict=True))

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """The executable that there is, else a new one."""
        found = self._ready.get((program, options))
        return self._backend.compile(program, device, options) if found is None else found

    def _takes(self, case: Case) -> bool:
        main = case.program.main
        try:
            return self._backend.refusal(query_of(main, main.instructions[0]), self._device) is None
        except Exception:  # noqa: BLE001  the case's own row says what is wrong
            return False
