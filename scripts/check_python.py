"""Refuses an interpreter that is too old, before anything is created with it."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the point of this file
    sys.exit(
        f"ptir needs Python >= 3.11, and {sys.executable} is {sys.version.split()[0]}; "
        "name a newer one: make PYTHON=python3.12 ..."
    )
