"""From a model, a text and the formats of a file to what is written: the way through a program."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from ptir.backend.contract import Target
from ptir.capture.creation import parameter
from ptir.checkpoint import Checkpoint
from ptir.errors import UsageError, unknown_name
from ptir.params.storage import storage_rule
from ptir.params.store import ParamStore
from ptir.runtime.calibration.inputs import SiteInputs, flow_of
from ptir.runtime.calibration.methods import METHODS
from ptir.runtime.calibration.program import Flow, pieces
from ptir.runtime.calibration.record import Calibrated, Calibration
from ptir.runtime.calibration.text import documents, windows
from ptir.runtime.handle import Model
from ptir.runtime.likelihood import WINDOW
from ptir.runtime.load import Described
from ptir.runtime.model_overrides import model_overrides
from ptir.runtime.session import Progress
from ptir.weights import WeightFormat


def calibrate(
    checkpoint: Checkpoint,
    read: Described,
    formats: Mapping[str, WeightFormat],
    changeable: Collection[str],
    *,
    asked: Calibration,
    target: Target,
    progress: Progress | None = None,
) -> Calibrated:
    """Quantize the matrices of ``formats`` for a text, or scale them; nothing is written.

    ``formats`` has the names of ``read``'s parameters, of which ``changeable`` ones may get
    other values. ``progress`` is told how many steps of all
    are done. Raises ``UsageError`` for an unknown method, numbers out of range, a text that is no
    text or too short, and where no matrix can be calibrated; ``CheckpointError`` for a tokenizer of
    another model; ``QuantizationError`` for activations and weights that are not finite.
    """
    began = time.perf_counter()
    if asked.method not in METHODS:
        raise UsageError(unknown_name("calibration method", asked.method, METHODS))
    if not asked.damping >= 0:
        raise UsageError(f"damping {asked.damping:g}: must be 0 or more")
    model = _model(checkpoint, read, target)
    tokens = _windows(model, asked)
    flow = flow_of(model, tokens.shape[1])
    wanted, left = _reached(flow, formats)
    if not wanted:
        why = next(iter(left.values()), "none is to be quantized")
        raise UsageError(
            f"{checkpoint.path}: --method {asked.method} finds no matrix to calibrate: {why}; round"
            " to nearest (--method rtn)"
        )
    axes = read.module.block_weights()
    method = METHODS[asked.method](flow, read.source, formats, axes, changeable, asked)
    method.found.rounded |= left
    inputs, parts = SiteInputs(flow, tokens, model), pieces(flow, wanted)
    steps = _Steps(progress, (2 * len(parts) - 2) * len(tokens))
    for number, piece in enumerate(parts):
        if piece.products:
            method.site(piece.products, inputs)
            steps(len(tokens))
        if number + 1 < len(parts):
            inputs.run(piece, method.read, steps)
    found = method.found
    found.windows, found.tokens = len(tokens), tokens.size
    found.seconds = time.perf_counter() - began
    return found


class _Steps:
    """Counts steps and tells of them."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, count: int = 1) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


def _model(checkpoint: Checkpoint, read: Described, target: Target) -> Model:
    """The model in f32, none of whose weights the store ever loads."""
    store = ParamStore(read.source, target, storage_rule("f32"))
    return Model(
        name=str(checkpoint.path),
        checkpoint=checkpoint,
        module=read.module.bind(partial(parameter, store)),
        store=store,
        target=target,
        text=read.text,
        context=read.context,
        overrides=model_overrides(str(checkpoint.path), read.architecture, read.policies, {}, {}),
        load_seconds=0.0,
    )


def _windows(model: Model, asked: Calibration) -> Any:
    """The windows of the text; raises ``UsageError``."""
    size = min(WINDOW, model.context) if asked.window is None else asked.window
    if not 2 <= size <= model.context:
        raise UsageError(f"window {size}: must be 2 to {model.context}, the context of the model")
    if asked.samples < 1:
        raise UsageError(f"samples {asked.samples}: must be 1 or more")
    return windows(
        documents(asked.file),
        model.encode,
        size=size,
        samples=asked.samples,
        seed=asked.seed,
        where=f"calibration {asked.file}",
    )


def _reached(
    flow: Flow, formats: Mapping[str, WeightFormat]
) -> tuple[frozenset[int], dict[str, str]]:
    """The ports of matrices to calibrate, and why those of other names are not."""
    numbers = {port.name: n for n, port in enumerate(flow.program.ports)}
    multiplied = {port for one in flow.products for port in one.weights}
    wanted: set[int] = set()
    left: dict[str, str] = {}
    for name in formats:
        port = numbers.get(name, -1)
        if port not in multiplied:
            left[name] = "its rows are looked up, or it is read by no product of the program"
        elif not flow.only_multiplied(port):
            left[name] = "it is a table of rows too, or multiplied with several inputs"
        else:
            wanted.add(port)
    return frozenset(wanted), left
