"""``ptir list``: the models on this machine, whether they run, and how fast they should decode.

The estimate is made of the bandwidth of memory (``cli.kept_bandwidth``) and the bytes of weights
that a token reads. Headers alone are read, and what cannot be opened is a line with its reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session

if TYPE_CHECKING:
    from ptir.runtime.catalog import Entry

COLUMNS = ("model", "family", "format", "size", "tok/s", "does not run because")


@click.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=click.Path(path_type=Path))
@common_options
def command(common: CommonOptions, folders: tuple[Path, ...]) -> None:
    """List the models in each FOLDER and in the caches of other programs.

    The first column is what commands take as MODEL. The speed of decoding is estimated: the
    bandwidth of memory, measured once, over the bytes of weights that a token reads.
    """
    with session(common):
        from ptir.runtime.catalog import catalog

        entries = list(catalog(folders))
        runs = any(entry.token_bytes for entry in entries)
        bandwidth = _bandwidth(common) if runs else None
    if common.json:
        rows = [_record(entry, bandwidth) for entry in entries]
        show.value({"bytes_per_second": bandwidth, "models": rows})
        return
    show.table(COLUMNS, [_row(entry, bandwidth) for entry in entries])
    if bandwidth is not None:
        show.note(f"tok/s: estimated from a bandwidth of {bandwidth / 1e9:.1f} GB/s")


def _bandwidth(common: CommonOptions) -> float | None:
    """Of the target; None, and a note, where no backend works."""
    from ptir.backend import registry
    from ptir.cli.kept_bandwidth import bandwidth_of
    from ptir.errors import BackendUnavailable

    if common.backend:
        return bandwidth_of(registry.get(common.backend))
    try:
        return bandwidth_of(registry.best().target)
    except BackendUnavailable as error:
        show.note(f"no speed is estimated: {error}")
        return None


def _speed(entry: Entry, bandwidth: float | None) -> float | None:
    from ptir.runtime.catalog import estimated_speed

    if not (bandwidth and entry.token_bytes):
        return None
    return estimated_speed(entry.token_bytes, bandwidth)


def _record(entry: Entry, bandwidth: float | None) -> dict[str, Any]:
    return {
        "name": entry.name,
        "store": entry.store,
        "path": str(entry.path),
        "family": entry.family,
        "format": entry.format,
        "bytes": entry.nbytes,
        "runs": not entry.problem,
        "problem": entry.problem,
        "bytes_per_token": sum(entry.token_bytes.values()) or None,
        "estimated_tokens_per_second": _speed(entry, bandwidth),
    }


def _row(entry: Entry, bandwidth: float | None) -> tuple[str, ...]:
    speed = _speed(entry, bandwidth)
    shown = "" if speed is None else f"{speed:.3g}" if speed < 100 else f"{speed:.0f}"
    size = f"{entry.nbytes / 1e9:.2f} GB" if entry.nbytes >= 1e8 else f"{entry.nbytes / 1e6:.1f} MB"
    return entry.name, entry.family, entry.format, size, shown, entry.reason
