"""Rewriting: patterns (programs with holes), the table of rules, and the engine that applies it."""

from ptir.rewrite.engine import Rewriter, rewrite
from ptir.rewrite.rule import NodeRule, Rule
from ptir.rewrite.rules import EXACT, FAST_MATH, rules

__all__ = ["EXACT", "FAST_MATH", "NodeRule", "Rewriter", "Rule", "rewrite", "rules"]
