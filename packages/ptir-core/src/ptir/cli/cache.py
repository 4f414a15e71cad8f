"""``ptir cache``: what is kept on disk to be faster the next time, its size, and its removal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options
from ptir.errors import UsageError

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
            Kind(cache.name, what, entries(cache), cache.limit)
            for cache, what in (
                (binaries.BINARIES, "built kernels by device"),
                (record.ARTIFACTS, "compiled programs"),
                (PROGRAMS, "optimized programs"),
            )
        ),
        Kind("weights", "weights as kernels read them", WEIGHTS.files, WEIGHTS.limit),
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


@click.command()
@click.argument("action", type=click.Choice(["list", "clear", "path"]), default="list")
@common_options
def command(common: CommonOptions, action: str) -> None:
    """List what is cached with its size, clear it, or print where it is (PTIR_CACHE_DIR)."""
    from ptir.backend.folders import cache_folder

    folder = cache_folder()
    if action == "path":
        show.value({"path": str(folder)}) if common.json else show.text(str(folder))
        return
    found = [(kind, _sizes(kind.files())) for kind in kinds()]
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
        show.text(f"removed {files} files, {_mebibytes(total)}, from {folder}")
    else:
        columns = ("kind", "files", "size", "at most", "what")
        show.table(columns, [_row(kind, sizes) for kind, sizes in found])
        show.note(f"in {folder}; `ptir cache clear` removes them")


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
    limit = "" if kind.limit is None else _mebibytes(kind.limit)
    return kind.name, str(len(sizes)), _mebibytes(sum(sizes.values())), limit, kind.what


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"
