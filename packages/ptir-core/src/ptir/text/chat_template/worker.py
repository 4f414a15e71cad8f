"""The process that renders chat templates: one JSON request a line in, one JSON reply a line out.

It runs as a file of its own (``python -I -S worker.py FOLDER...``), so that it starts fast and has
nothing of the caller's in it, and imports nothing of ptir. A template comes with a model and is a
program: what it may use is limited by the operating system, which stops loops and allocations
wherever they are, also inside one call in C.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

FILENAME: Final = "<template>"
"""What jinja2 calls the file of a template without one."""


class RefusedError(Exception):
    """What a template says by ``raise_exception``."""


def main(folders: list[str]) -> None:
    """Serve requests until stdin ends; the ``folders`` hold jinja2 and what it needs."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    sys.path += folders
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    compiled = _prepare()
    for line in requests:
        request = json.loads(line)
        _limit(request["memory"])
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        reply = _reply(compiled, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(reply).encode("ascii") + b"\n")
        replies.flush()


def _limit(memory: int) -> None:
    """From now on: no file is opened or written, no process started, and so much memory is used."""
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_NOFILE: 3,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for what, most in limits.items():
        with suppress(ValueError, OSError):  # a system that lacks one, or has set less
            resource.setrlimit(what, (most, most))


def _reply(compiled: Callable[[str], Any], request: dict[str, Any]) -> dict[str, Any]:
    """What became of a request: ``text``, or ``refused`` or ``failed`` with where and why."""
    try:
        text = compiled(request["template"]).render(**request["variables"])
        if len(text) > request["characters"]:
            return {"failed": f"its text is longer than {request['characters']} characters"}
        text.encode("utf-8")
        return {"text": text}
    except RefusedError as refused:
        return {"refused": str(refused)[:2000]}
    except MemoryError:
        return {"failed": "it takes too much memory"}
    except RecursionError:
        return {"failed": "it calls itself too often"}
    except Exception as error:  # noqa: BLE001  whatever a template does is told
        return {"failed": f"{type(error).__name__}: {error}"[:500] + _line(error)}


def _line(error: Exception) -> str:
    """Where in the template an error comes from, as far as that is known."""
    line, at = getattr(error, "lineno", None), error.__traceback__
    while at is not None:
        line = at.tb_lineno if at.tb_frame.f_code.co_filename == FILENAME else line
        at = at.tb_next
    return f" (line {line})" if line else ""


def _prepare() -> Callable[[str], Any]:
    """Import all that is needed later, when no file can be opened, and give the compiler."""
    import codecs
    import html  # noqa: F401  this and the next: jinja2 imports them when it needs them
    import pprint  # noqa: F401
    import textwrap  # noqa: F401

    import jinja2
    import jinja2.constants
    import jinja2.debug  # noqa: F401
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` around what the assistant says: a mark for training, no text."""

        tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    _now("%A %d %B %Y %H:%M:%S %Z")  # the zone's file is read once
    codecs.lookup("unicode_escape")  # of texts in templates
    return lru_cache(maxsize=8)(environment.from_string)


def _raise(message: str) -> None:
    raise RefusedError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML's escapes, which jinja2's own filter puts in."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    main(sys.argv[1:])
