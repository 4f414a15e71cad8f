"""Work that hangs or crashes, for tests of who watches; it imports nothing that takes long."""

from __future__ import annotations

import os
import time

from hostile.watched import Work


def planted(hang: int, crash: int) -> Work:
    """Numbers at which a process hangs or dies."""

    def work(number: int) -> str:
        if number == crash:
            os.abort()
        if number == hang:
            time.sleep(600)
        return f"did {number}"

    return work
