"""A progress bar with ETA for what takes several steps, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]


@contextmanager
def progress(what: str, also: Callable[[], str] | None = None) -> Iterator[Report]:
    """Yields ``report(done, total)``; a bar called ``what`` appears on stderr while some is left.

    What is done in its first step shows none. What ``also`` says stands behind it.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    more = () if also is None else (TextColumn("{task.fields[also]}"),)
    console = Console(stderr=True)
    bar = Progress(*columns, TimeRemainingColumn(), *more, console=console, transient=True)
    task = bar.add_task(what, total=None, also="")

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total, also=also() if also else "")
        if done < total and not bar.live.is_started:
            bar.start()
        if done >= total:
            bar.stop()

    try:
        yield report
    finally:
        bar.stop()
