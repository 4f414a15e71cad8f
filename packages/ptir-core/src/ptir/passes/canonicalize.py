"""Rewrites a program by the rules in force until none fires: the exact ones, unless asked."""

from __future__ import annotations

import warnings
from dataclasses import replace

from ptir.ir.program import Program
from ptir.passes.context import PassContext
from ptir.rewrite.engine import RuleFailedError, rewrite
from ptir.rewrite.plugged import leave_out, rules_in_force
from ptir.switches import FAST_MATH, switched_on


def canonicalize(program: Program, context: PassContext) -> Program:
    """``program`` at a fixed point of the rules, which are counted in ``context``.

    A rule of a plugin that fails is named in a ``RuntimeWarning`` and left out from then on; one
    of ours raises ``VerifyError``.
    """
    while True:
        in_force = rules_in_force(fast_math=switched_on(FAST_MATH))
        try:
            return replace(program, main=rewrite(program.main, in_force, context.rewrites))
        except RuleFailedError as error:
            owner = leave_out(error.rule)
            if owner is None:
                raise
            said = f"plugin {owner}: {error}; the rule is left out from now on, correct it"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
