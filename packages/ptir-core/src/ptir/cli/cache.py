"""``ptir cache``: what is kept on disk to be faster the next time, its size, and its removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ptir import units
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, showing_only
from ptir.errors import UsageError, unknown_name
from ptir.switches import WEIGHTS_LIMIT

if TYPE_CHECKING:
    from ptir.backend.disk_cache import DiskCache


@dataclass(frozen=True)
class Kind:
    """One kind of content: its files now, and the most bytes they may take together."""

    name: str
    what: str
    files: Callable[[], list[Path]]
    limit: int | None


def kinds() -> tuple[Kind, ...]:
    """Everything that ptir caches."""
    from ptir.backend.cache_key import known_keys
    from ptir.backend.verdicts import VERDICTS
    from ptir.capture.optimized import PROGRAMS
    from ptir.cli.kept_bandwidth import BANDWIDTHS
    from ptir.cli.roofs import FLOPS
    from ptir.codegen.artifact import binaries, record
    from ptir.codegen.schedules import tuned_tiles
    from ptir.passes.remembered import tuning_records_file
    from ptir.passes.tuned import tuned_file
    from ptir.runtime.prepacked import WEIGHTS

    def entries(cache: DiskCache) -> Callable[[], list[Path]]:
        return lambda: [*cache.files(), *kept_in(lambda: known_keys(cache))()]

    def kept_in(file: Callable[[], Path]) -> Callable[[], list[Path]]:
        return lambda: [path for path in [file()] if path.exists()]

    timed, tried = kept_in(tuning_records_file), kept_in(lambda: VERDICTS.path)
    bandwidths, flops = kept_in(lambda: BANDWIDTHS.path), kept_in(lambda: FLOPS.path)
    return (
        *(
            Kind(cache.name, what, entries(cache), cache.most)
            for cache, what in (
                (binaries.BINARIES, "built kernels by device"),
                (record.ARTIFACTS, "compiled programs"),
                (PROGRAMS, "optimized programs"),
            )
        ),
        Kind("weights", "weights as kernels read them", WEIGHTS.files, WEIGHTS.most),
        Kind("tiles", "sizes measured by `ptir warmup --tune`", tuned_tiles.files, None),
        Kind("implementations", "which implementation was fastest", timed, None),
        Kind("tuned", "models that `ptir tune` was run for", kept_in(tuned_file), None),
        Kind(
            "bandwidth",
            "how fast this machine reads memory",
            bandwidths,
            None,
        ),
        Kind("flops", "how fast products of f32 matrices are", flops, None),
        Kind("trials", "which plugins end the process that loads them", tried, None),
    )


@showing_only("json")
@click.command()
@click.argument("action", type=click.Choice(["list", "clear", "path"]), default="list")
@click.argument("names", nargs=-1, metavar="[KIND]...")
@common_options
def command(common: CommonOptions, action: str, names: tuple[str, ...]) -> None:
    """List what is cached with its size, clear it, or print where it is (PTIR_CACHE_DIR).

    With KINDs, of the first column of the list, these alone are listed or cleared.
    """
    from ptir.backend.folders import cache_folder

    folder = cache_folder()
    if action == "path":
        if names:
            raise UsageError(f"path says where the whole cache is; leave {names[0]!r} out")
        show.value({"path": str(folder)}) if common.json else show.text(str(folder))
        return
    found = [(kind, _sizes(kind.files())) for kind in _chosen(names)]
    if action == "clear":
        for _, sizes in found:
            _remove(list(sizes))
    total = sum(sum(sizes.values()) for _, sizes in found)
    files = sum(len(sizes) for _, sizes in found)
    if common.json:
        rows = [
            {
                "name": kind.name,
                "files": len(sizes),
                "bytes": sum(sizes.values()),
                "limit_bytes": kind.limit,
            }
            for kind, sizes in found
        ]
        show.value({"path": str(folder), "cleared": action == "clear", "kinds": rows})
    elif action == "clear":
        of = f" of {', '.join(names)}" if names else ""
        show.text(f"removed {files} files{of}, {units.binary(total)}, from {folder}")
    else:
        columns = ("kind", "files", "size", "at most", "what")
        show.table(columns, [_row(kind, sizes) for kind, sizes in found])
        show.note(
            f"{units.binary(total)} in {folder}; `ptir cache clear` removes them, `ptir cache clear"
            f" KIND` one kind; {WEIGHTS_LIMIT} is the most of weights"
        )


def _chosen(names: Sequence[str]) -> list[Kind]:
    """The kinds called so, all without names; raises ``UsageError``."""
    known = {kind.name: kind for kind in kinds()}
    for name in names:
        if name not in known:
            raise UsageError(unknown_name("kind", name, known))
    return [known[name] for name in dict.fromkeys(names or known)]


def _sizes(files: list[Path]) -> dict[Path, int]:
    """Each file's bytes; other processes may remove one at any time."""
    sizes = {}
    for path in files:
        try:
            sizes[path] = path.stat().st_size
        except FileNotFoundError:
            continue
    return sizes


def _remove(files: list[Path]) -> None:
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"{path}: cannot be removed ({error.strerror})") from error


def _row(kind: Kind, sizes: dict[Path, int]) -> tuple[str, ...]:
    limit = "" if kind.limit is None else units.binary(kind.limit)
    return kind.name, str(len(sizes)), units.binary(sum(sizes.values())), limit, kind.what
