"""Random typed programs: drawn from the op records, run optimized and not, judged op by op."""

from ptir_testsuite.programs.check import (
    RandomProgram,
    run_program,
    run_programs,
    run_stored,
)
from ptir_testsuite.programs.draw import Drawn, drawn_program, exact_of
from ptir_testsuite.programs.stored import Stored, stored

__all__ = [
    "Drawn",
    "RandomProgram",
    "Stored",
    "drawn_program",
    "exact_of",
    "run_program",
    "run_programs",
    "run_stored",
    "stored",
]
