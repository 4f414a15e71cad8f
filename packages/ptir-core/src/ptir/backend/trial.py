"""Load other people's backends and plugins in a process of their own first.

What ends its process while it is imported, crashes it or never comes back is found that way without
taking ``ptir`` along. Loading here remains what says everything else that is wrong.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import metadata
from typing import IO, TYPE_CHECKING, Final

from ptir.backend.entries import OWN, Entry, normalized

if TYPE_CHECKING:
    import subprocess  # where a trial runs: most processes know the verdict

LIMIT_SECONDS: Final = 30.0
"""How long a stranger may take to be imported and to name its devices."""
IN_TRIAL: Final = "PTIR_IN_TRIAL"
"""Set in the process of a trial, which starts no others whatever it loads."""
_CAME_BACK: Final = b"came back"
_CHILD: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from ptir.backend import trial; trial.child(*sys.argv[2:])"
)


def strangers(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries that can be loaded and that are no distribution of this project."""
    return tuple(
        e for e in entries if e.point is not None and normalized(e.distribution) not in OWN
    )


def chosen(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries that are tried: those of strangers, and in a trial none."""
    return () if IN_TRIAL in os.environ else strangers(entries)


def ended(entries: tuple[Entry, ...], loader: str) -> dict[Entry, str]:
    """What became of those ``entries`` whose process did not outlive ``loader(entry)``."""
    return {entry: end for entry, end in verdicts(entries, loader).items() if end}


@cache
def verdicts(entries: tuple[Entry, ...], loader: str) -> dict[Entry, str]:
    """Why the process of each entry did not outlive ``loader(entry)``, or nothing where it did.

    ``loader`` is ``module:function``. All are tried at the same time, strangers only, once for a
    process. Where nobody can be tried, it is empty.
    """
    try:
        with ExitStack() as stack:
            trials = [
                (entry, stack.enter_context(_started(entry, loader))) for entry in chosen(entries)
            ]
            deadline = time.monotonic() + LIMIT_SECONDS
            return {entry: _end_of(*trial, deadline) for entry, trial in trials}
    except OSError as error:  # they are loaded here without a trial, as where a backend is named
        said = f"nobody was tried in a process of its own: {error}; give TMPDIR a folder with room"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
        return {}


@contextmanager
def _started(entry: Entry, loader: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A process that loads ``entry``, and the file that gets its output; it ends with the block.

    Files, because a pipe stays open as long as anything that the stranger started.
    """
    import subprocess
    import tempfile

    fields = (entry.name, entry.distribution, entry.version, entry.value, _group(entry))
    command = [sys.executable, "-c", _CHILD, json.dumps(sys.path), loader, *fields]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, IN_TRIAL: "1"},
        )
        try:
            yield process, said
        finally:
            process.kill()
            process.wait()


def _group(entry: Entry) -> str:
    return entry.point.group if entry.point else ""


def _end_of(process: subprocess.Popen[bytes], said: IO[bytes], deadline: float) -> str:
    """Why the process did not come back, or nothing when it did."""
    import subprocess

    try:
        code = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"it did not come back within {LIMIT_SECONDS:g} s of being loaded"
    said.seek(0)
    output = said.read()
    if output.endswith(_CAME_BACK):
        return ""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    words = f"; its last words: {last[:200]}" if last else ""
    return f"it ends the process that loads it ({_how(code)}){words}"


def _how(code: int) -> str:
    import signal

    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def child(loader: str, *fields: str) -> None:
    """What the process of a trial runs: it says that it came back, and ends without ceremony."""
    name, distribution, version, value, group = fields
    point = metadata.EntryPoint(name, value, group)
    module, _, function = loader.partition(":")
    load = getattr(importlib.import_module(module), function)
    load(Entry(name, distribution, version, value, point=point))
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(1, _CAME_BACK)
    os._exit(0)
