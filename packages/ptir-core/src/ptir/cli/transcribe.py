"""``ptir transcribe``: what is said in recordings, as text, with times, or as subtitles.

Options that are fields of ``SpeechOptions`` have their names and stand in ``CHOICES``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import Formats, format_options, model_argument, open_model
from ptir.cli.texts import measured, summary

if TYPE_CHECKING:
    from ptir.runtime.speech import SpeechModel, Transcript, TranscriptRun

PLAIN: Final = "plain"


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, ...]:
        """``0,0.2`` to (0.0, 0.2)."""
        try:
            return tuple(map(float, str(value).split(",")))
        except ValueError:
            self.fail(f"{value!r} must be numbers with commas between them, as 0,0.2", param, ctx)


class Threshold(click.ParamType[float | str]):
    """A number, or ``none``."""

    name = "threshold"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | str:
        """A number, or the word ``none``: None itself says that nothing was given."""
        if value == NONE:
            return NONE
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} must be a number or {NONE}", param, ctx)


NONE: Final = "none"
CHOICES: Final = (
    click.option(
        "--language",
        metavar="NAME",
        help="What is spoken, as a code or an English name; default: found out.",
    ),
    click.option(
        "--task",
        type=click.Choice(["transcribe", "translate"]),
        default="transcribe",
        show_default=True,
        help="Write down what is said, or that in English.",
    ),
    click.option(
        "--prompt",
        metavar="TEXT",
        help="Stands before the text of every window, for words and how they are spelled.",
    ),
    click.option(
        "--condition-on-previous-text",
        is_flag=True,
        help="Let the text before go on in each window.",
    ),
    click.option(
        "--temperature",
        metavar="T,T,...",
        type=Numbers(),
        help="Of a window, one after another until its text is believed; default: 0,0.2,...,1.",
    ),
    click.option(
        "--compression-ratio-threshold",
        metavar="X",
        type=Threshold(),
        help="Decode again what zlib makes more than X times shorter, or none; default: 2.4.",
    ),
    click.option(
        "--logprob-threshold",
        metavar="X",
        type=Threshold(),
        help="Decode again where the mean log probability is below X, or none; default: -1.",
    ),
    click.option(
        "--no-speech-threshold",
        metavar="X",
        type=Threshold(),
        help="Leave such a window out where silence is likelier than X, or none; default: 0.6.",
    ),
    click.option(
        "--word-timestamps",
        is_flag=True,
        help="Times of every word: in lines and subtitles, which then hold one, and --json, which"
        " tells their probabilities, too.",
    ),
    click.option(
        "--beams",
        metavar="N",
        type=int,
        help="Keep the N likeliest texts at temperature 0; default: 1.",
    ),
    click.option(
        "--best-of",
        metavar="N",
        type=int,
        help="Draw N texts at a temperature above 0 and take the likeliest; default: 1.",
    ),
)


def choices(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of ``SpeechOptions``."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(CHOICES), command)


@click.command()
@model_argument
@click.argument("files", nargs=-1, required=True)
@choices
@click.option(
    "--timestamps", "form", flag_value="timestamps", help="A line for each segment, with times."
)
@click.option("--srt", "form", flag_value="srt", help="Print SubRip subtitles.")
@click.option("--vtt", "form", flag_value="vtt", help="Print WebVTT subtitles.")
@click.option(
    "--no-timestamps",
    is_flag=True,
    help="Ask the model for no times: windows follow each other, several at once with --batch.",
)
@click.option(
    "--batch",
    metavar="N",
    type=int,
    default=1,
    show_default=True,
    help="Hear N windows at once: of several FILES, or with --no-timestamps of one.",
)
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    files: tuple[str, ...],
    form: str | None,
    no_timestamps: bool,
    batch: int,
    formats: Formats,
    **chosen: Any,
) -> None:
    """Print what is said in each of FILES, by a MODEL of speech.

    FILES are WAV of any rate, or - for one from stdin; other formats need soundfile, an extra.
    What is printed comes segment by segment. --seed seeds what temperatures above 0 draw.
    """
    if files.count("-") > 1:
        raise click.UsageError("-: stdin can be read once; give it once")
    if form in ("srt", "vtt") and len(files) > 1:
        raise click.UsageError(f"--{form} is for one file; give one")
    if form is not None and common.json:
        raise click.UsageError(f"give --{form} or --json, which has times too, not both")
    asked = {name: None if one == NONE else one for name, one in chosen.items() if one is not None}
    asked.update(timestamps=not no_timestamps, seed=common.seed or 0)
    out, found = sys.stdout, list["Transcript"]()
    with session(common):
        loaded = cast("SpeechModel", open_model(common, model, formats, needs="transcribe"))
        with measured(loaded) as run:
            given = [sys.stdin.buffer if name == "-" else name for name in files]
            runs = loaded.transcribing_batch(given, batch=batch, **asked)
            for name, under_way in zip(files, runs, strict=True):
                if not common.json:
                    title = name if len(files) > 1 else ""
                    _print(under_way, form or PLAIN, title, out)
                found.append(under_way.finished())
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
    pieces = (one for segment in run for one in segment.words or [segment])
    for number, one in enumerate(pieces, 1):
        match form:
            case "srt":
                text = srt_block(number, one)
            case "vtt":
                text = vtt_block(one)
            case "timestamps":
                times = f"[{clock(one.start, hours=False)} --> {clock(one.end, hours=False)}]"
                text = f"{times} {' '.join(one.text.split())}\n"
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
