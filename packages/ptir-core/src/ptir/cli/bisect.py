"""``ptir bisect``: the first instruction whose results are wrong, and a program that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.compared import subject_options
from ptir.cli.model import Formats, format_options, input_options, model_argument
from ptir.cli.progress import progress
from ptir.cli.subjects import opened
from ptir.errors import VerifyError


@click.command()
@model_argument
@input_options
@subject_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reproducer"),
    show_default=True,
    help="The folder that the reproducer is written to.",
)
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
    out: Path,
    formats: Formats,
) -> None:
    """Find the first instruction of a step of MODEL that --backend computes wrongly.

    MODEL may also be a program (FILE.ptir) with its arrays (--input). A program of few instructions
    that shows the fault is written to --out, with its inputs and both results; the command exits
    with 5 then, and with 0 where nothing is off by more than --tolerance.
    """
    from ptir.debug import Tolerance, bisect
    from ptir.debug.reproducer_files import (
        check_folder,
        described,
        write_reproducer,
    )
    from ptir.debug.reproducer_files import (
        command as repeated,
    )

    check_folder(out)
    with session(common):
        texts = prompt, prompt_option, tokens
        subject = opened(common, formats, model, texts, inputs, against, step)
        with progress("runs") as report:
            found = bisect(subject, Tolerance(tolerance), report)
        if found is not None:
            write_reproducer(out, subject, found, Tolerance(tolerance))
    target, believed = subject.tested.target, subject.reference.target
    if found is None:
        if common.json:
            show.value({"subject": subject.name, "backend": str(target), "found": False})
        else:
            show.text(f"{target} computes what {believed} does")
        return
    about = described(subject, found)
    if common.json:
        show.value({**about, "found": True, "folder": str(out)})
    else:
        show.table(("", ""), about.items())
        show.text(repeated(out, subject, Tolerance(tolerance)))
    raise VerifyError(
        f"{target} is wrong from instruction {found.position} on ({found.instruction.name}):"
        f" {out} has a program of {about['reproducer_instructions']} instructions that shows it"
    )
