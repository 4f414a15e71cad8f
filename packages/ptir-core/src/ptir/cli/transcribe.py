"""``ptir transcribe``: what is said in recordings, as text, with times, or as subtitles."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import Formats, format_options, model_argument, open_model
from ptir.cli.texts import measured, summary

if TYPE_CHECKING:
    from ptir.runtime.speech import SpeechModel, Transcript, TranscriptRun

PLAIN: Final = "plain"


@click.command()
@model_argument
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--language",
    metavar="NAME",
    help="What is spoken, as a code or an English name; default: found out.",
)
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    default="transcribe",
    show_default=True,
    help="Write down what is said, or that in English.",
)
@click.option(
    "--timestamps", "form", flag_value="timestamps", help="A line for each segment, with times."
)
@click.option("--srt", "form", flag_value="srt", help="Print SubRip subtitles.")
@click.option("--vtt", "form", flag_value="vtt", help="Print WebVTT subtitles.")
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    files: tuple[str, ...],
    language: str | None,
    task: str,
    form: str | None,
    formats: Formats,
) -> None:
    """Print what is said in each of FILES, by a MODEL of speech.

    FILES are WAV of any rate, or - for one from stdin; other formats need soundfile, an extra.
    What is printed comes segment by segment.
    """
    if files.count("-") > 1:
        raise click.UsageError("-: stdin can be read once; give it once")
    if form in ("srt", "vtt") and len(files) > 1:
        raise click.UsageError(f"--{form} is for one file; give one")
    if form is not None and common.json:
        raise click.UsageError(f"give --{form} or --json, which has times too, not both")
    out, found = sys.stdout, list["Transcript"]()
    with session(common):
        loaded = cast("SpeechModel", open_model(common, model, formats, needs="transcribe"))
        with measured(loaded) as run:
            for name in files:
                given = sys.stdin.buffer if name == "-" else name
                under_way = loaded.transcribing(given, language=language, task=task)
                if not common.json:
                    title = name if len(files) > 1 else ""
                    _print(under_way, form or PLAIN, title, out)
                for _ in under_way:
                    pass
                found.append(under_way.result)
    if common.json:
        rows = [_record(name, one) for name, one in zip(files, found, strict=True)]
        stats = {**run.stats, "audio_seconds": sum(one.duration for one in found)}
        show.value({"files": rows, "stats": stats, "formats": formats.chosen(loaded)})
        return
    seconds = sum(one.duration for one in found)
    summary(len(files), "recording", run.stats)
    show.note(f"{seconds:.1f} s of sound, {seconds / run.stats['seconds']:.1f} x real time")


def _print(run: TranscriptRun, form: str, title: str, out: TextIO) -> None:
    """Each segment as soon as it is certain."""
    from ptir.runtime.speech.transcript import VTT_HEADER, clock, srt_block, vtt_block

    if title:
        out.write(f"{title}:\n")
    if form == "vtt":
        out.write(VTT_HEADER)
    first = True
    for number, one in enumerate(run, 1):
        match form:
            case "srt":
                text = srt_block(number, one)
            case "vtt":
                text = vtt_block(one)
            case "timestamps":
                times = f"[{clock(one.start, hours=False)} --> {clock(one.end, hours=False)}]"
                text = f"{times} {one.text.strip()}\n"
            case _:
                text = one.text.lstrip() if first else one.text
        first = False
        out.write(text)
        out.flush()
    if form == PLAIN:
        out.write("\n")


def _record(name: str, found: Transcript) -> dict[str, Any]:
    return {
        "file": name,
        "language": found.language,
        "duration": found.duration,
        "text": found.text,
        "segments": [asdict(one) for one in found.segments],
    }
