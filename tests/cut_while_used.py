"""A process that decodes while its model's file is cut, and what it ends with.

    python tests/cut_while_used.py BACKEND BUDGET FOLDER

prints an error's class and text between runs; ``during`` after the folder cuts the file from a
thread while runs follow one another.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import ptir
from ptir.errors import PtirError


def main() -> None:
    """Decode, cut, decode again."""
    backend, budget, folder, *when = sys.argv[1:]
    how = {"device_memory": budget} if budget else {}
    model = ptir.load_model(folder, backend=backend, **how)
    pieces = iter(model.run([[1, 2, 3]], max_tokens=40, temperature=0, ignore_eos=True))
    next(pieces)
    (file,) = Path(folder).glob("*.safetensors")
    cutter = threading.Timer(0.0, os.truncate, (file, 4096))
    cutter.start()
    if not when:
        cutter.join()
    try:
        for _ in pieces:
            pass
    except PtirError as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
