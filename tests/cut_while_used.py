"""A process that decodes while its model's file is cut, and what it ends with.

    python tests/cut_while_used.py BACKEND BUDGET FOLDER [unnoticed]

prints an error's class and text. The file is cut between two steps; ``unnoticed`` has nobody look
at its length, as if it were cut just after that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ptir
from ptir.capture import plan
from ptir.errors import PtirError
from ptir.params import streaming


def main() -> None:
    """Decode, cut, decode again."""
    backend, budget, folder, *when = sys.argv[1:]
    how = {"device_memory": budget} if budget else {}
    model = ptir.load_model(folder, backend=backend, **how)
    pieces = iter(model.run([[1, 2, 3]], max_tokens=40, temperature=0, ignore_eos=True))
    next(pieces)
    (file,) = Path(folder).glob("*.safetensors")
    os.truncate(file, 4096)
    if when:
        plan.check_whole = streaming.check_whole = lambda mappings: None  # type: ignore[assignment]
    try:
        for _ in pieces:
            pass
    except PtirError as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
