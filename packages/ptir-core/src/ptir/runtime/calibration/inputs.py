"""What the matrices of a model are multiplied with when it reads a text, site by site.

All windows of the text go through a piece of the program, and what the pieces behind it need is
kept; then through the next. So one layer's weights are in memory at a time, beside the values of
all windows at one place: a few times windows x tokens x hidden size numbers in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptir import functional as F
from ptir.backend.checked import downloaded
from ptir.capture.jit import capture
from ptir.capture.plan import Parameter, plan_for
from ptir.errors import QuantizationError
from ptir.params.source import ArraySource
from ptir.params.store import ParamStore
from ptir.runtime.calibration.program import Flow, Piece, Product
from ptir.runtime.steps import all_logits
from ptir.types import I32, TensorType

if TYPE_CHECKING:
    from ptir.runtime.handle import Model

Array = np.ndarray[Any, Any]
Read = Callable[[str], Array]
"""A parameter by name, as f32."""
Step = Callable[[], None]
GATHERED: Final = 512
"""Rows that are multiplied at once where windows give fewer: an expert gets few of each, and adding
a matrix of inputs by inputs to the sum takes as long as multiplying some rows does."""


def flow_of(model: Model, size: int) -> Flow:
    """The program by which ``model`` reads a window of ``size`` tokens."""

    def read(tokens: Any) -> Any:
        count = F.full((1,), size, "i32")
        return all_logits(model.module, partial(model.state_types, swa_full=True), tokens, count)

    with model.policies():
        return Flow(capture(read, TensorType(I32, (1, size))))


class SiteInputs:
    """The windows' values at one place of a program: a number of the program to one array each."""

    def __init__(self, flow: Flow, windows: Array, model: Model) -> None:
        self._flow, self._model = flow, model
        (tokens,) = flow.fed & set(range(len(flow.program.ports)))
        self._values: dict[int, list[Array]] = {tokens: [one[None] for one in windows]}
        self._count = len(windows)

    def run(self, piece: Piece, read: Read, step: Step) -> None:
        """Take the windows through a piece, whose parameters ``read`` gives; a ``step`` each."""
        target = self._model.target
        backend, device = target.backend, target.device
        names = [self._flow.program.ports[number].name for number in piece.parameters]
        arrays = {f"p{n}": np.ascontiguousarray(read(name)) for n, name in enumerate(names)}
        store = ParamStore(ArraySource(arrays), target)
        with self._model.policies():
            plan = plan_for(piece.program, target)
        bound = plan.bind({name: Parameter(store, name) for name in arrays})
        made: dict[int, list[Array]] = {value: [] for value in piece.outputs}
        for window in range(self._count):
            given = [
                backend.upload(np.ascontiguousarray(self._values[v][window]), device)
                for v in piece.inputs
            ]
            found = plan.run(given, bound)
            types = piece.program.main.output_types
            for value, handle, type in zip(piece.outputs, found, types, strict=True):
                made[value].append(np.array(downloaded(backend, handle, device, type)))
            step()
        for value in piece.last:
            del self._values[value]
        self._values |= made

    def rows(self, product: Product, expert: int | None, name: str) -> Iterator[Array]:
        """The inputs f32[rows, inputs] of a product, or those given to one expert, by window.

        Raises ``QuantizationError`` that names the parameter where they are not finite.
        """
        for window, x in enumerate(self._values[product.inputs]):
            if not np.isfinite(x).all():
                raise QuantizationError(
                    f"parameter {name!r}: its inputs hold NaN or infinity in window {window} of the"
                    " calibration text; the model overflows on it, or is damaged"
                )
            if product.chosen is None or expert is None:
                yield x.reshape(-1, x.shape[-1])
                continue
            chosen = self._values[product.chosen][window]
            given = chosen == expert
            yield x[given] if x.ndim == given.ndim + 1 else x[given.any(axis=1)]

    def sum_of(self, product: Product, expert: int | None, name: str) -> tuple[Array, Array, int]:
        """The sum f64[inputs, inputs] of x xᵀ, the mean f64[inputs] of |x|, and how many rows.

        Products of a window, or of several with ``GATHERED`` rows, are sums in f32, what is added
        to one another is f64.
        """
        inputs = self._flow.block.types[product.inputs].shape[-1]
        total, size, count = np.zeros((inputs, inputs)), np.zeros(inputs), 0
        for x in gathered(self.rows(product, expert, name), GATHERED):
            with np.errstate(over="ignore", invalid="ignore"):
                total += x.T @ x
            size += np.abs(x).sum(axis=0, dtype=np.float64)
            count += len(x)
        return total, size / max(count, 1), count


def gathered(parts: Iterable[Array], least: int) -> Iterator[Array]:
    """The rows of ``parts`` in order, at least so many together; the last ones may be fewer."""
    held: list[Array] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= least:
            yield held[0] if len(held) == 1 else np.concatenate(held)
            held = []
    if any(map(len, held)):
        yield np.concatenate(held)
