"""``ptir diff``: what two traces differ in, layer by layer."""

from __future__ import annotations

from pathlib import Path

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, showing_only
from ptir.cli.compared import COLUMNS, as_json, cells, tolerance_option
from ptir.errors import VerifyError

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@showing_only("json")
@click.command()
@click.argument("wanted", metavar="A", type=FILE)
@click.argument("got", metavar="B", type=FILE)
@click.option("--stop-on-first-mismatch", is_flag=True, help="End at the first wrong layer.")
@tolerance_option
@common_options
def command(
    common: CommonOptions,
    wanted: Path,
    got: Path,
    stop_on_first_mismatch: bool,
    tolerance: float | None,
) -> None:
    """Compare the trace B with A, in the order of A's layers.

    Exits with 5 where a layer is off by more than --tolerance, or only one of the files has it.
    """
    from ptir.debug import Tolerance, diff_traces, read_trace
    from ptir.debug.traces import TraceDifference, missing_layers

    one, other = read_trace(wanted), read_trace(got)
    rows: list[TraceDifference] = []
    for row in diff_traces(one, other, Tolerance(tolerance)):
        rows.append(row)
        if stop_on_first_mismatch and not row.right:
            break
    alone = missing_layers(one, other)
    if common.json:
        show.value(
            {
                "layers": [
                    {"name": r.name, "right": r.right, **(as_json(r.found) if r.found else {})}
                    for r in rows
                ],
                "only_in_one": alone,
            }
        )
    else:
        other_types = ("of other types", *[""] * (len(COLUMNS) - 2), "wrong")
        table = [(r.name, *(cells(r.found, r.right) if r.found else other_types)) for r in rows]
        show.table(("layer", *COLUMNS), table)
    wrong = [row.name for row in rows if not row.right]
    if wrong:
        raise VerifyError(f"{got}: {len(wrong)} of {len(rows)} layers differ, {wrong[0]} first")
    if alone:
        raise VerifyError(f"only one of the traces has {', '.join(sorted(alone)[:4])}")
