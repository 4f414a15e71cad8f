"""Composites claimed and lowered: both against the functional's formula in double precision."""

from ptir_testsuite.composites import images
from ptir_testsuite.composites.calls import CALLS, CompositeCall
from ptir_testsuite.composites.check import run_composite
from ptir_testsuite.composites.formulas import FORMULAS

__all__ = ["CALLS", "FORMULAS", "CompositeCall", "images", "run_composite"]
