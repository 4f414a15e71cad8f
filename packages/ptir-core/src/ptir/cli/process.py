"""The end of a command's process."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Final, NoReturn

UNFLUSHED: Final = 120
"""The exit code of a process whose last output could not be written, as the interpreter's own."""


def end_process(code: int) -> NoReturn:
    """Leave as ``sys.exit(code)`` does, but leave objects to the operating system.

    Threads are waited for, callbacks of ``atexit`` run and streams are flushed. What is left out is
    taking modules, programs and weights apart one by one: a tenth of a short command's time, for
    memory that goes back with the process.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls at this place
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # full, or closed meanwhile: nothing is left to tell it to
            code = code or UNFLUSHED
    os._exit(code)
