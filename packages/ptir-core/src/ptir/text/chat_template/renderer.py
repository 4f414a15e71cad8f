"""The other end of ``worker.py``: starts the process, asks it, and ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from ptir.errors import CheckpointError, UnsupportedError, UsageError

WORKER: Final = Path(__file__).with_name("worker.py")
PACKAGES: Final = ("jinja2", "markupsafe")


class Limits(NamedTuple):
    """What rendering one prompt may take; templates of today take a thousandth of each.

    ``template`` and ``characters`` are lengths of the template and of what it gives, ``seconds``
    are of the processor, ``memory`` is address space in bytes.
    """

    template: int = 1 << 20
    characters: int = 1 << 24
    seconds: float = 2.0
    memory: int = 1 << 29


class Renderer:
    """A process that renders templates, started when it is first needed and kept."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits: Final = limits or Limits()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Renderer] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process without waiting for it; raises ``UnsupportedError`` where it cannot.

        Loading a model in the meantime hides all that a start costs.
        """
        if self._process is not None:
            return
        command = [sys.executable, "-I", "-S", str(WORKER), *_folders()]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        try:  # a group of its own, so that Ctrl-C in a terminal does not reach it
            process = subprocess.Popen(command, process_group=0, **pipes)  # type: ignore[call-overload]
        except OSError as error:
            raise UnsupportedError(
                f"chat templates are rendered by another process of Python, and {sys.executable!r}"
                f" cannot be started: {error.strerror or error}; give the prompt yourself (--raw)"
            ) from error
        self._process = process
        self._end = weakref.finalize(self, _ended, process)

    @property
    def lives(self) -> bool:
        """Whether there is a process; rendering what passes the limits ends it."""
        return self._process is not None

    def close(self) -> None:
        """End the process; rendering starts another."""
        if self._end is not None:
            self._end()
        self._process = None

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """What ``template`` makes of ``variables``, which are JSON.

        Raises ``UsageError`` with what the template says where it refuses them, and
        ``CheckpointError`` where it cannot be used or passes the limits.
        """
        if len(template) > self.limits.template:
            raise CheckpointError(
                f"it has {len(template)} characters, and at most {self.limits.template} may be"
            )
        given = self.limits._asdict() | {"template": template, "variables": dict(variables)}
        reply = self._ask(json.dumps(given).encode("ascii") + b"\n")
        if "refused" in reply:
            raise UsageError(reply["refused"])
        if "failed" in reply:
            raise CheckpointError(reply["failed"])
        text: str = reply["text"]
        return text

    def _ask(self, request: bytes) -> dict[str, Any]:
        with self._lock:
            self.start()
            process = self._process
            assert process is not None and process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(request)
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            except BaseException:  # an answer that nobody waits for would be the next one's
                self.close()
                raise
            if not line.endswith(b"\n"):
                code = process.wait()
                self.close()
                raise CheckpointError(self._death(code))
            reply: dict[str, Any] = json.loads(line)
            return reply

    def _death(self, code: int) -> str:
        if code == -signal.SIGPROF:
            return f"it takes more than {self.limits.seconds:g} s of the processor"
        if code < 0:
            return f"it ended the process that renders it ({signal.Signals(-code).name})"
        return f"the process that renders it ended with {code}: is jinja2 3.1.6 or newer whole?"


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:  # what it was not sent
            continue
    process.wait()


def _folders() -> list[str]:
    """Where the packages lie that a template needs; they are found, and not imported."""
    found = []
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise UnsupportedError(
                f"chat templates need {name}, which is not installed: pip install {name}"
            )
        found.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(found))
