"""``ptir verify``: whether a backend computes what another one does, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.compared import COLUMNS, as_json, cells, subject_options
from ptir.cli.eval_options import LIBRARIES, Asked, inputs_of
from ptir.cli.forward import PROGRAMS
from ptir.cli.model import (
    Formats,
    format_options,
    given_input,
    input_options,
    model_argument,
    open_model,
)
from ptir.cli.subjects import opened
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

    Of a model that takes images or texts a run is compared: over the image file or text that is
    given, else over noise, or a text that is known.

    --against torch compares with the same model of PyTorch, whose layers are found by their names.
    MODEL may also be a program (FILE.ptir) with its arrays (--input). Exits with 5 where something
    is off by more than --tolerance; `ptir bisect` finds the instruction then.
    """
    from ptir.debug import Tolerance, verify_layers

    if against in LIBRARIES:
        if inputs or step != "prefill" or model.endswith(PROGRAMS):
            raise click.UsageError(
                f"--against {against} compares a whole text of a model; leave --input and --step"
                " out, and compare programs with another backend"
            )
        asked = _asked(formats, model, (prompt, prompt_option, tokens), against, tolerance)
        _verify_beside(common, asked)
        return
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


def _asked(
    formats: Formats,
    model: str,
    texts: tuple[str | None, str | None, str | None],
    against: str,
    tolerance: float | None,
) -> Asked:
    given = given_input(*texts) if any(text is not None for text in texts) else None
    return Asked(
        model,
        "trace",
        formats,
        against,
        inputs=(given,) if isinstance(given, str) else (),
        tokens=texts[2],
        tolerance=tolerance,
    )


def _verify_beside(common: CommonOptions, asked: Asked) -> None:
    """The same beside another library's model."""
    from ptir.cli.eval_workloads import beside
    from ptir.debug import Tolerance
    from ptir.peers.process import library
    from ptir.peers.workloads import OUTPUT, trace

    against = str(asked.against)
    with session(common):
        library(against)  # before anything is loaded
        loaded = open_model(common, asked.model, asked.formats, needs="trace")
        with beside(common, loaded, asked.model, against) as pair:
            (given,) = inputs_of(loaded, asked)
            found = trace(pair, given, Tolerance(asked.tolerance))
    first = found.first_wrong
    if common.json:
        rows = [(row.theirs == (OUTPUT,), row) for row in found.rows]
        outputs, layers = (
            [{"name": r.name, "right": r.right, **as_json(r.found)} for of, r in rows if of is one]
            for one in (True, False)
        )
        show.value(
            {
                "subject": asked.model,
                "backend": str(loaded.target),
                "against": against,
                "right": first is None,
                "outputs": outputs,
                "layers": layers,
                "not_compared": [*found.alone],
            }
        )
    else:
        show.table(("layer", *COLUMNS), [(r.name, *cells(r.found, r.right)) for r in found.rows])
    if first is not None:
        raise VerifyError(
            f"{loaded.target} is wrong in {first.name}: {first.found.relative:.2g} of the largest,"
            f" by {against}; `ptir bisect` with the same options but --against ref finds the"
            " instruction if the reference is right"
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
