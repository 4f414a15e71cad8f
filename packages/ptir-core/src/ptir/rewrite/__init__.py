"""Rewriting: patterns (programs with holes), rules, the engine; composites found in ops."""

from ptir.rewrite.engine import Rewriter, rewrite
from ptir.rewrite.rule import NodeRule, RewriteRule, Rule, row
from ptir.rewrite.rules import EXACT, FAST_MATH, rules

__all__ = [
    "EXACT",
    "FAST_MATH",
    "NodeRule",
    "RewriteRule",
    "Rewriter",
    "Rule",
    "rewrite",
    "row",
    "rules",
]
