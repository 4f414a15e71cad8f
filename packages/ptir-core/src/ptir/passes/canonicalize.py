"""Rewrites a program by the exact rules until none fires."""

from __future__ import annotations

from dataclasses import replace

from ptir.ir.program import Program
from ptir.passes.context import PassContext
from ptir.rewrite.engine import rewrite
from ptir.rewrite.rules import rules


def canonicalize(program: Program, context: PassContext) -> Program:
    """``program`` at a fixed point of the exact rules, which are counted in ``context``."""
    return replace(program, main=rewrite(program.main, rules(), context.rewrites))
