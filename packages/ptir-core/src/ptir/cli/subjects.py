"""What ``verify`` and ``bisect`` look at: a program, or what a model runs, on two targets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import click

from ptir.cli.compared import TEXT
from ptir.cli.eval_options import Asked, inputs_of
from ptir.cli.forward import PROGRAMS, read_program
from ptir.cli.model import Formats, given_input, open_model

if TYPE_CHECKING:
    from ptir.backend.contract import Target
    from ptir.cli.common import CommonOptions
    from ptir.debug import Subject
    from ptir.runtime import Model
    from ptir.runtime.image_model import ImageModel
    from ptir.runtime.speech import SpeechModel
    from ptir.runtime.text_model import TextModel

Texts: TypeAlias = tuple[str | None, str | None, str | None]
"""Prompt, ``-p`` and ``--tokens``."""


def opened(
    common: CommonOptions,
    formats: Formats,
    model: str,
    texts: Texts,
    inputs: tuple[Path, ...],
    against: str,
    step: Any,
) -> Subject:
    """MODEL, or the program in a file, on the target of ``--backend`` and on ``against``.

    ``texts`` are prompt, ``-p`` and ``--tokens``. Raises usage errors.
    """
    from ptir.backend import registry
    from ptir.cli.common import open_target
    from ptir.debug import subject_of_program

    reference = registry.get(against)
    if model.endswith(PROGRAMS):
        from ptir.checkpoint import load_archive

        if any(text is not None for text in texts):
            raise click.UsageError("a program takes no text; give its arrays with --input")
        program = read_program(Path(model))
        arrays = {n: array for file in inputs for n, array in load_archive(file).arrays.items()}
        target = open_target(common)
        _check_sides(target, reference)
        return subject_of_program(model, program, arrays, target, reference)
    if inputs:
        raise click.UsageError("--input is for programs (.ptir); a model takes a text or --tokens")
    if formats.device_memory:
        raise click.UsageError(
            "results are compared with all weights there: leave --device-memory out"
        )
    tested = open_model(common, model, formats, needs="trace")
    _check_sides(tested.target, reference)
    believed = open_model(common, model, formats, "trace", reference)
    return _of_models(tested, believed, model, formats, texts, step)


def _of_models(
    tested: Model, believed: Model, name: str, formats: Formats, texts: Texts, step: Any
) -> Subject:
    """A step of a model that generates; a run of one that sees, hears or reads texts."""
    from ptir.debug import (
        subject_of_images,
        subject_of_model,
        subject_of_speech,
        subject_of_texts,
    )
    from ptir.runtime.image_model import ImageModel

    if "generate" in tested.capabilities:
        return subject_of_model(tested, believed, believed.encode(_prompt(believed, texts)), step)
    if step != "prefill":
        raise click.UsageError(f"--step {step} is for models that generate; leave it out")
    given = given_input(*texts) if any(text is not None for text in texts) else None
    shown = (given,) if isinstance(given, str) else ()
    asked = Asked(name, "trace", formats, inputs=shown, tokens=texts[2])
    (found,) = inputs_of(believed, asked)
    if isinstance(tested, ImageModel):
        return subject_of_images(tested, cast("ImageModel", believed), found.array)
    tokens = found.array.reshape(1, -1)
    if found.features is not None:
        two = cast("SpeechModel", tested), cast("SpeechModel", believed)
        return subject_of_speech(*two, tokens, found.features[None])
    return subject_of_texts(cast("TextModel", tested), cast("TextModel", believed), tokens)


def _prompt(model: Model, texts: Texts) -> str | list[int]:
    if any(text is not None for text in texts):
        return given_input(*texts)
    return TEXT if model.tokenizer else [*range(1, 9)]


def _check_sides(tested: Target, reference: Target) -> None:
    if str(tested) == str(reference):
        raise click.UsageError(
            f"{tested} is compared with itself; name another backend with --backend or --against"
        )
