"""Random typed programs: drawn from the op records, run optimized and not, judged op by op."""

from ptir_testsuite.programs.check import RandomProgram, run_program
from ptir_testsuite.programs.draw import Drawn, drawn_program

__all__ = ["Drawn", "RandomProgram", "drawn_program", "run_program"]
