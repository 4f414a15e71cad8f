"""A process in which one fault is planted in the kernel generator, and bisected: JSON on stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from many_families import inputs, program

from ptir.backend import registry
from ptir.debug import Tolerance, bisect, subject_of_program
from ptir.debug.reproducer_files import check_folder, described, write_reproducer
from ptir_testsuite.mutants.planting import PLANTED, plant


def main(name: str, folder: Path) -> None:
    plant(PLANTED[name])
    sides = registry.get("c"), registry.get("ref")
    subject = subject_of_program("many", program(), inputs(), *sides)
    found = bisect(subject, Tolerance())
    if found is None:
        print(json.dumps({"found": False}))
        return
    check_folder(folder)
    write_reproducer(folder, subject, found, Tolerance())
    print(json.dumps({"found": True, **described(subject, found)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
