"""``ptir verify``: whether a backend computes what another one does, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.compared import COLUMNS, as_json, cells, opened, subject_options
from ptir.cli.model import Formats, format_options, input_options, model_argument
from ptir.errors import VerifyError

if TYPE_CHECKING:
    from ptir.debug import Subject, Verification


@click.command()
@model_argument
@input_options
@subject_options
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    prompt: str | None,
    prompt_option: str | None,
    tokens: str | None,
    against: str,
    step: Any,
    inputs: tuple[Path, ...],
    tolerance: float | None,
    formats: Formats,
) -> None:
    """Compare a step of MODEL on --backend with --against: outputs, then every layer.

    MODEL may also be a program (FILE.ptir) with its arrays (--input). Exits with 5 where something
    is off by more than --tolerance; `ptir bisect` finds the instruction then.
    """
    from ptir.debug import Tolerance, verify_layers

    with session(common):
        texts = prompt, prompt_option, tokens
        subject = opened(common, formats, model, texts, inputs, against, step)
        found = verify_layers(subject, Tolerance(tolerance))
    if common.json:
        show.value(_value(subject, found))
    else:
        rows = [*found.layers, *found.outputs]
        show.table(("layer", *COLUMNS), [(r.name, *cells(r.found, r.right)) for r in rows])
    first = found.first_wrong
    if first is not None:
        raise VerifyError(
            f"{subject.tested.target} is wrong in {first.name}: {first.found.relative:.2g} of the"
            f" largest, by {subject.reference.target}; `ptir bisect` with the same options finds"
            " the instruction"
        )


def _value(subject: Subject, found: Verification) -> dict[str, Any]:
    def rows(every: Any) -> list[dict[str, Any]]:
        return [{"name": r.name, "right": r.right, **as_json(r.found)} for r in every]

    return {
        "subject": subject.name,
        "backend": str(subject.tested.target),
        "against": str(subject.reference.target),
        "right": found.right,
        "outputs": rows(found.outputs),
        "layers": rows(found.layers),
    }
