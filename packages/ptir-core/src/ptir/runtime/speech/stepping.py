"""The steps of a model of speech, to be run again and again: a window, a prompt, a token."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ptir.errors import UsageError
from ptir.runtime.explain import Kept, Step, random_tokens
from ptir.runtime.speech.decoding import prompt_width
from ptir.runtime.speech.recorded import recorded_hearing, recorded_prompt, recorded_token

if TYPE_CHECKING:
    from ptir.nn.state import State
    from ptir.runtime.speech.speech_model import SpeechModel


def windows_step(model: SpeechModel, rows: int) -> Step:
    """Hearing ``rows`` windows: the encoder, and the keys and values of what it gives."""
    return Step(
        "windows",
        rows,
        rows,
        lambda: partial(model.decoder.hear, random_windows(model, rows), rows),
        model.decoder.steps.hear,
        partial(recorded_hearing, model, rows),
    )


def prompt_step(model: SpeechModel, rows: int, length: int) -> Step:
    """A prompt of ``length`` tokens in each of ``rows`` windows; raises ``UsageError``."""
    prompt = _prompt(model, length)
    width = prompt_width(length, model.context)
    return Step(
        "prefill",
        rows,
        rows * width,
        lambda: model.decoder.prompting(_source(model, rows), prompt),
        model.decoder.steps.begin,
        partial(recorded_prompt, model, rows, width),
        kept=_kept(model, rows),
        cached=_heard(model),
    )


def token_step(model: SpeechModel, rows: int, position: int) -> Step:
    """A token behind ``position`` others in each of ``rows`` windows; raises ``UsageError``."""
    prompt = _prompt(model, position, more=1)
    return Step(
        "decode",
        rows,
        rows,
        lambda: model.decoder.stepping(_source(model, rows), prompt),
        model.decoder.steps.advance,
        partial(recorded_token, model, rows),
        position,
        _kept(model, rows),
        _heard(model),
    )


def random_windows(model: SpeechModel, rows: int) -> Any:
    """Features f32[rows,F,M] of noise."""
    settings = model.settings
    shape = rows, settings.frames, settings.mels
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _source(model: SpeechModel, rows: int) -> State:
    return model.decoder.hear(random_windows(model, rows), rows)


def _prompt(model: SpeechModel, length: int, more: int = 0) -> list[int]:
    if length + more > model.context:
        raise UsageError(
            f"{length + more} tokens do not fit the context of {model.context}; use fewer"
        )
    return [model.tokens.start, *random_tokens(model, length - 1)]


def _kept(model: SpeechModel, rows: int) -> Kept:
    states = model.decoder_states
    types = (state.types(rows, model.context, model.cache_dtype) for state in states)
    return Kept(model.context, sum(type.nbytes for layer in types for type in layer))


def _heard(model: SpeechModel) -> range:
    """The inputs that are keys and values of what was heard: behind tokens and the own ones."""
    own = 1 + 2 * len(model.decoder_states)
    return range(own, 2 * own - 1)
