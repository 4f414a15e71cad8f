"""The steps of a model of speech as they are captured, for windows that have a row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptir.capture.build import Captured
from ptir.capture.jit import record
from ptir.nn.state import State, by_layer, tensor_names
from ptir.types import TensorType, spec

if TYPE_CHECKING:
    from ptir.runtime.speech.speech_model import SpeechModel


def recorded_logits(model: SpeechModel, rows: int, length: int) -> Captured:
    """Windows ``features`` f32[R,F,M] and ``tokens`` i32[R,T] to logits of all positions."""
    settings = model.settings
    types = spec("i32", rows, length), spec("f32", rows, settings.frames, settings.mels)
    return record(model.logits, types, ["tokens", "features"])[0]


def recorded_hearing(model: SpeechModel, rows: int) -> Captured:
    """Windows ``features`` f32[R,F,M] to what the decoder attends to."""
    settings, steps = model.settings, model.decoder.steps
    types = (spec("f32", rows, settings.frames, settings.mels),)
    return record(lambda features: steps.hear(features), types, ["features"])[0]


def recorded_prompt(model: SpeechModel, rows: int, length: int) -> Captured:
    """Prompts of ``length`` tokens to the likeliest next ones, by the rules of timestamps."""
    steps = model.decoder.steps

    def step(tokens: Any, marks: Any, count: Any, never: Any, bounds: Any, *flat: Any) -> Any:
        own, source = _divided(model, flat)
        return steps.begin(tokens, own, source, marks, count, never, bounds, None, True, 1)

    row = spec("i32", rows)
    return _recorded(
        step, model, {"tokens": spec("i32", rows, length), "marks": row, "count": row}, rows
    )


def recorded_token(model: SpeechModel, rows: int) -> Captured:
    """One token of each window to the likeliest next one, by the rules of timestamps."""
    steps = model.decoder.steps

    def step(token: Any, start: Any, never: Any, bounds: Any, *flat: Any) -> Any:
        own, source = _divided(model, flat)
        return steps.advance(token, own, source, start, never, bounds, None, True, 1)

    row = spec("i32", rows)
    return _recorded(step, model, {"token": row, "start": row}, rows)


def _recorded(step: Any, model: SpeechModel, given: dict[str, TensorType], rows: int) -> Captured:
    """``step`` on ``given``, what may follow, and the states of all layers."""
    states = model.decoder_states
    carried = [state.types(rows, model.context, model.cache_dtype) for state in states]
    may = {"never": spec("bool", model.tokens.size), "bounds": spec("i32", rows, 3)}
    types = (*given.values(), *may.values(), *(one for layer in carried for one in layer))
    return record(step, types, [*given, *may, *tensor_names(states)])[0]


def _divided(model: SpeechModel, flat: Any) -> tuple[State, State]:
    """The decoder's own keys and values, and those of what was heard."""
    layers = by_layer(model.decoder_states, flat)
    return tuple(layer[:2] for layer in layers), tuple(layer[2:] for layer in layers)
