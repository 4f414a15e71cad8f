"""``ptir bench``: how fast a model is, in the conventions of llama-bench.

A test ``pp512`` runs a prompt of 512 random tokens, ``tg64`` decodes 64 tokens. Each is warmed up
once and repeated; decoding is bracketed by a probe of memory bandwidth (see ``cli.bandwidth``).
Its share of that bandwidth is the bytes of the weights that a step reads, times steps per second.
Of a model of speech ``enc1500`` hears a window, whose 1500 positions take the place of tokens, and
``win30s+64`` writes 64 tokens of it, from its samples on. Of models of images ``img8`` sees 8 of
them at once, of encoders ``txt8x128`` reads 8 texts of 128 tokens; their arithmetic stands beside
the most that the device was seen to do (see ``cli.roofs``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import (
    Formats,
    format_options,
    model_argument,
    open_model,
    speculation,
    speculation_options,
    streamed_record,
)

if TYPE_CHECKING:
    from ptir.cli.bench_rows import Bench

SPELLED: Final = {
    "n_prompt": "-p",
    "n_gen": "-n",
    "batches": "--batch",
    "speculate": "--speculate",
    "draft": "--draft",
}
"""How the parameters that not every kind of model takes are written."""


@click.command()
@model_argument
@click.option(
    "-p",
    "--n-prompt",
    type=click.IntRange(0),
    help="Tokens of a prompt (default: 512), or of an encoder's texts (128).",
)
@click.option("-n", "--n-gen", type=click.IntRange(0), help="Tokens to decode; default: 64.")
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(1),
    multiple=True,
    help="Images or texts at once. Repeatable; default: 1 and 8.",
)
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page of it, too."
)
@speculation_options
@format_options
@common_options
@click.pass_context
def command(
    context: click.Context,
    /,
    common: CommonOptions,
    model: str,
    n_prompt: int | None,
    n_gen: int | None,
    batches: tuple[int, ...],
    repetitions: int,
    html: Path | None,
    formats: Formats,
    speculate: str | None,
    draft: str | None,
) -> None:
    """Measure MODEL: tokens per second of a prompt (ppN) and of decoding (tgN).

    With --speculate or --draft also of decoding the same greedy text with it (tgN+NAME). Of a model
    of speech: positions per second of hearing a window (encN), tokens per second of decoding (tgN),
    and of a window of S seconds from its samples to N tokens (winSs+N), with how many times as fast
    as it is spoken that is. Of a model of images: images per second, N at once (imgN). Of an
    encoder: tokens per second of B texts of N tokens at once (txtBxN).
    """
    from ptir.cli.bench_rows import Asked
    from ptir.cli.benches import BENCHES, GenerationBench
    from ptir.runtime.kinds import row_of

    source = context.get_parameter_source
    typed = [name for name in SPELLED if source(name) is ParameterSource.COMMANDLINE]
    asked = Asked(n_prompt, n_gen, batches, speculate or (draft and "draft"))
    with session(common):
        loaded = open_model(common, model, formats, needs="trace")
        kind = row_of(BENCHES, loaded)
        for name in typed:
            if name not in kind.takes:
                users = dict.fromkeys(one.does for one in BENCHES.values() if name in one.takes)
                raise click.UsageError(
                    f"{SPELLED[name]} is for models that {' or '.join(users)}; leave it out for"
                    f" {model}"
                )
        proposer = speculation(common, formats, speculate, draft)
        bench = GenerationBench(loaded, proposer) if kind is GenerationBench else kind(loaded)
        rows = [bench.row(test, repetitions) for test in bench.tests(asked)]
        probe = bench.probed()
        estimate = bench.estimated(formats) if probe else None
    report: dict[str, Any] = {
        "model": model,
        "backend": loaded.target.backend.name,
        "device": loaded.target.device.name,
        **formats.chosen(loaded),
        "probe": probe,
        "estimated_tokens_per_second": estimate,
        **streamed_record(loaded),
        "rows": rows,
    }
    label = formats.weights(loaded)
    if html is not None:
        from ptir.report import write_page

        write_page(html, _page(report, label, bench))
    if common.json:
        show.value(report)
        return
    lines = [(model, report["backend"], label, r["test"], *_cells(r, bench)) for r in rows]
    show.table(("model", "backend", "dtype", "test", *_titles(rows, bench)), lines)
    if probe is not None:
        speed = probe["bytes_per_second"] / 1e9
        show.text(f"\nbandwidth: {speed:.1f} GB/s in the median ({probe['kind']})")
    if estimate is not None:
        show.text(f"estimate of `ptir list` for decoding: {estimate:.1f} tok/s")


def _page(report: dict[str, Any], label: str, bench: Bench) -> str:
    """The report as a page: speeds as bars with their spread, and a table."""
    from ptir.report import bars, page, table

    what, share = bench.bound
    speeds = {row["test"]: row[bench.key] for row in report["rows"]}
    drawn = [
        {"name": name, "value": speed["median"], "low": speed["min"], "high": speed["max"]}
        for name, speed in speeds.items()
    ]
    more = [key for key in report["rows"][0] if key in COUNTS] if report["rows"] else []
    columns = (
        "test",
        "median",
        "min",
        "max",
        f"of {what}",
        *(COUNTS[key] for key in more),
        "samples",
    )
    rows = [
        [
            row["test"],
            *(round(speeds[row["test"]][of], 2) for of in ("median", "min", "max")),
            None if row[share] is None else round(row[share], 3),
            *(row[key] for key in more),
            ", ".join(f"{speed:.1f}" for speed in speeds[row["test"]]["samples"]),
        ]
        for row in report["rows"]
    ]
    facts = [("ran on", f"{report['backend']} {report['device']}"), ("weights", label)]
    if report["probe"] is not None:
        measured = report["probe"]["bytes_per_second"] / 1e9
        facts.append(("bandwidth", f"{measured:.1f} GB/s ({report['probe']['kind']})"))
    spread = "Medians; marks are the slowest run and the fastest."
    title = bench.key.replace("_per_", " a ").capitalize()
    sections = [bars("Speed", bench.unit, drawn, spread), table(title, columns, rows)]
    return page(f"{report['model']}: speed", facts, sections)


COUNTS: Final = {
    "weight_bytes_per_token": "weight bytes per token",
    "rows": "at once",
    "flops": "operations of a run",
    "real_time": "times real time",
}
"""The titles of what a page tells of a test besides its speed."""


def _titles(rows: Sequence[dict[str, Any]], bench: Bench) -> tuple[str, ...]:
    times = ("ms",) if any("seconds" in row for row in rows) else ()
    heard = ("real time",) if any("real_time" in row for row in rows) else ()
    return (bench.unit, "spread", *times, f"of {bench.bound[0]}", *heard)


def _cells(row: dict[str, Any], bench: Bench) -> tuple[str, ...]:
    speed, share = row[bench.key], row[bench.bound[1]]
    spread = f"{speed['min']:.1f} to {speed['max']:.1f}"
    times = (f"{1e3 * row['seconds']:.2f}",) if "seconds" in row else ()
    shown = "" if share is None else f"{share:.0%}"
    heard = (f"{row['real_time']:.1f} x" if row["real_time"] else "",) if "real_time" in row else ()
    return (f"{speed['median']:.1f}", spread, *times, shown, *heard)
