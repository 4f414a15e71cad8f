"""``ptir report``: what a step of a model, or a dumped program, does, as one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.explain import step_of, step_title
from ptir.cli.model import Formats, format_options, model_argument, open_model
from ptir.errors import UnsupportedError
from ptir.units import duration, size

if TYPE_CHECKING:
    from ptir.report import Section
    from ptir.runtime import Model
    from ptir.runtime.explain import StepReport
    from ptir.runtime.kinds import Sizes
    from ptir.trace.profile import ProgramProfile, Roofs

OUT = Path("report.html")


@click.command()
@model_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUT,
    show_default=True,
    help="The page to write.",
)
@click.option("--prefill", type=click.IntRange(1), help="A prompt of N tokens instead.")
@click.option(
    "--position",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Tokens that are in the cache before a decode step.",
)
@click.option("--encoder", is_flag=True, help="Of a model of speech: hearing a window.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Images, texts or windows of speech a run.",
)
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, show_default=True)
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    out: Path,
    prefill: int | None,
    position: int,
    encoder: bool,
    batch: int,
    repetitions: int,
    formats: Formats,
) -> None:
    """Write a page of HTML about a decode step of MODEL: graph, roofline, timeline, memory, fusion.

    MODEL may also be a program's folder in --dump-dir, or that whole folder: then of the program
    that ran longest. The page needs no network.
    """
    from ptir.cli.roofs import roofs_of
    from ptir.report import page, program_sections, write_page
    from ptir.trace import is_dump

    given = Path(model).resolve()  # "." has neither name nor parent
    dump = given if given.is_dir() and is_dump(given) else None
    more: list[Section] = []
    with session(common):
        if dump is not None:
            from ptir.cli.report_dump import dump_sections, longest, profile_dump

            folder = longest(dump)
            profile, facts = profile_dump(common, folder, repetitions)
            more = dump_sections(folder)
            title = f"{folder.name} of {folder.parent.name or folder.parent}"
        else:
            from ptir.runtime.kinds import Sizes

            loaded = open_model(common, model, formats, needs="trace")
            sizes = Sizes(position, prefill, encoder, batch, repetitions)
            with loaded.policies():
                profile, what = _measured(loaded, sizes)
            facts = [("weights", formats.weights(loaded))]
            title = f"{loaded.name}: {what}"
        roofs = roofs_of(profile.plan.target)
        sections = program_sections(profile, roofs)
    if not sections:
        raise UnsupportedError(
            f"{profile.plan.target.backend.name} does not time the parts of this program: the host"
            " drives its control flow, its weights are streamed (--device-memory), or the backend"
            " lacks Executable.explain or timed; --profile times it whole"
        )
    facts = [*_facts(profile, roofs), *facts]
    write_page(out, page(title, facts, [*sections, *more]))
    if common.json:
        show.value({"report": str(out), "title": title, "facts": dict(facts)})
    else:
        show.text(f"{out}: {title}")


def _measured(loaded: Model, sizes: Sizes) -> tuple[ProgramProfile, str]:
    """The program of a step, with its parts timed, and what the step is."""
    from ptir.runtime.explain import explained
    from ptir.trace import ProfileSink, listening_to

    sink = ProfileSink()
    with listening_to([sink]):
        report = explained(loaded, step_of(loaded, sizes), sizes.repeats)
    found = [p for p in sink.programs() if p.plan.name == report.plan.name]
    # Of several of that name, such as chunks of a prompt, only the step's parts were timed.
    return max(found, key=lambda p: (p.timed, p.runs)), _what(report)


def _what(report: StepReport) -> str:
    if report.step == "decode":
        return f"a decode step at position {report.position}"
    if report.step == "prefill":
        return f"a prompt of {report.tokens // report.rows} tokens"
    return f"a run over {step_title(report)}"


def _facts(profile: ProgramProfile, roofs: Roofs) -> list[tuple[str, str]]:
    plan, parts = profile.plan, profile.parts
    explanation = profile.explanation()
    assert explanation is not None
    target = plan.target
    seconds = sum(profile.typical())
    kernels = sum(part.kind == "kernel" for part in explanation.parts)
    held = {"parameter": 0, "input": 0}
    for port, type in zip(plan.optimized.ports, plan.optimized.inputs, strict=True):
        held[port.kind] += type.nbytes
    memory, peak = roofs.bytes_per_second, roofs.flops_per_second
    known = [f"{memory / 1e9:.1f} GB/s of memory"] if memory else []
    known += [f"{peak / 1e9:.1f} GFLOP/s of products of f32 matrices"] if peak else []
    took = f"{duration(seconds)} in all, medians of {profile.timed} runs"
    read, given = (size(held[kind]) or "none" for kind in ("parameter", "input"))
    return [
        ("ran on", f"{target.backend.name}:{target.device.index} {target.device.name}"),
        ("program", f"{plan.name or 'program'}, {len(plan.optimized.main.instructions)} ops"),
        ("parts", f"{len(parts)}, of that {kernels} kernels; {took}"),
        ("parameters", f"{read}; state and inputs {given}"),
        ("intermediates", f"planned in {size(explanation.arena_bytes or 0) or 'no memory'}"),
        ("roofs", ", ".join(known) or "unknown"),
        ("workers", explanation.sharing or "none"),
    ]
