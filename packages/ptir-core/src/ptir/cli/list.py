"""``ptir list``: the models on this machine, whether they run, and how fast they should decode.

The estimate is made of the bandwidth of memory (``cli.kept_bandwidth``), what the backend reaches
of it (``runtime.catalog.REACHED``) and the bytes of weights that a token reads; of models that fit
the processor's caches also of the caches' bandwidth and what a step takes beside (``IN_CACHES``).
Headers alone are read, and what cannot be opened is a line with its reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptir import units
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session

if TYPE_CHECKING:
    from ptir.cli.estimates import Basis
    from ptir.runtime.catalog import Entry

COLUMNS = ("model", "family", "format", "size", "tok/s", "does not run because")


@click.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=click.Path(path_type=Path))
@common_options
def command(common: CommonOptions, folders: tuple[Path, ...]) -> None:
    """List the models in each FOLDER and in the caches of other programs.

    The first column is what commands take as MODEL, the third how most weights are stored, as
    their file says. The speed of decoding is estimated: what the backend reaches of the bandwidth
    of memory and caches, measured once, over the bytes of weights that a token reads.
    """
    with session(common):
        from ptir.cli.estimates import Basis, chosen_basis
        from ptir.runtime.catalog import catalog

        entries = list(catalog(folders))
        runs = any(entry.token_bytes for entry in entries)
        basis = chosen_basis(common) if runs else Basis()
    if basis.problem:
        show.note(f"no speed is estimated: {basis.problem}")
    if common.json:
        rows = [_record(entry, basis) for entry in entries]
        told = {"backend": basis.backend or None, "no_estimate_because": basis.problem or None}
        show.value({"bytes_per_second": basis.bandwidth, **told, "models": rows})
        return
    show.table(COLUMNS, [_row(entry, basis) for entry in entries])
    if basis.bandwidth is not None:
        speed = f"{basis.bandwidth / 1e9:.1f} GB/s"
        show.note(
            f"tok/s: estimated for {basis.backend} from a bandwidth of {speed}{_beside(basis)}"
        )


def _beside(basis: Basis) -> str:
    """What is said of models that fit the processor's caches."""
    if not basis.caches:
        return "; models that fit the processor's caches wait for other things"
    return f", of caches up to {max(basis.caches.values()) / 1e9:.0f} GB/s"


def _record(entry: Entry, basis: Basis) -> dict[str, Any]:
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
        "estimated_tokens_per_second": basis.speed(entry.token_bytes, entry.layers),
    }


def _row(entry: Entry, basis: Basis) -> tuple[str, ...]:
    speed = basis.speed(entry.token_bytes, entry.layers)
    shown = "" if speed is None else f"{speed:.3g}" if speed < 100 else f"{speed:.0f}"
    return entry.name, entry.family, entry.format, units.size(entry.nbytes), shown, entry.reason
