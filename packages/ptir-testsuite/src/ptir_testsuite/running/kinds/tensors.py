"""Playing a script on tensors and jitted functions, where core owns the handles.

What was donated is gone: the contract leaves that to core, which raises ``CaptureError`` at every
later use and never asks the backend.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import ptir
from ptir.errors import CaptureError, UnsupportedError
from ptir_testsuite.corpus.layouts import LAYOUTS, scribble
from ptir_testsuite.corpus.recipes import RECIPES
from ptir_testsuite.corpus.scripts import DONATIONS, Step
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.kinds.handles import Player, at_once, guarded
from ptir_testsuite.running.outcomes import Outcome

NAMES: Final = ("a", "b")


class Tensors(Player):
    """On a backend through core: tensors, and functions that consume some of their arguments."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.gone: dict[str, Any] = {}

    def read(self, name: str) -> Any:
        """The elements of a tensor."""
        return self.alive[name].numpy()

    def upload(self, step: Step) -> None:
        """A tensor of its own."""
        self.model[step.name] = self.values(step)
        array: Array = LAYOUTS[step.how](self.model[step.name])
        made = guarded("upload", lambda: ptir.tensor(array, backend=self.target))
        self.alive[step.name] = made
        scribble(array)

    def compile(self, step: Step) -> None:
        """A function; it is compiled when it is first called."""
        function = RECIPES[step.recipe].tensors
        donated = [NAMES[place] for place in sorted(DONATIONS[step.how])]
        self.built[step.name] = ptir.jit(function, donate=donated)

    def run(self, step: Step) -> None:
        """A call."""
        operands = [self.alive[name] for name in step.of]
        function = self.built[step.name]
        self.gained(step, guarded("execute", lambda: function(*operands), compiles=True))

    def lost(self, name: str) -> None:
        """What was donated can still be held, and no more than that."""
        self.gone[name] = self.alive[name]
        super().lost(name)

    def rivals(self, step: Step) -> None:
        """Every thread calls the function with the tensor that it consumes: one call succeeds."""
        function, (donated, *others) = self.built[step.name], step.of
        tensor, won = self.alive[donated], dict[str, Any]()

        def calls(number: int) -> None:
            other = self.alive[others[number]]
            try:
                won[others[number]] = function(tensor, other)
            except CaptureError as error:
                if "donated" not in str(error):
                    text = f"a call does not say that its argument was donated: {error}"
                    raise Failed(Outcome.WRONG_ERROR, "execute", text) from error

        at_once(calls)
        if len(won) != 1:
            text = (
                f"{len(won)} of {len(others)} threads that donate one tensor succeeded; it must be"
                " one"
            )
            raise Failed(Outcome.ACCEPTED_INVALID, "execute", text)
        ((other, found),) = won.items()
        self.gained(replace(step, of=(donated, other)), found)

    def use_after_donation(self, step: Step) -> None:
        """Reading it and calling with it are both refused."""
        gone = self.gone[step.name]
        self._refused("reading it", gone.numpy)
        self._refused("adding to it", lambda: (gone + 1).numpy())

    def _refused(self, what: str, use: Any) -> None:
        try:
            found = use()
        except CaptureError as error:
            if "donated" in str(error):
                return
            text = f"{what} does not say that it was donated: {error}"
            raise Failed(Outcome.WRONG_ERROR, "execute", text) from error
        except UnsupportedError:
            raise
        except Exception as error:
            text = f"{what} raised {type(error).__name__}: {error}; it must raise CaptureError"
            raise Failed(Outcome.WRONG_ERROR, "execute", text) from error
        text = f"{what} gave {found.reshape(-1)[:3]}...; it was donated and must be refused"
        raise Failed(Outcome.ACCEPTED_INVALID, "execute", text)
