"""Planted faults, each of which the corpus must catch: one that catches nothing proves nothing."""

from ptir_testsuite.mutants import (
    arrays,
    bits,
    elementwise,
    equivalent,
    lifetimes,
    models,
    moves,
    places,
    values,
)
from ptir_testsuite.mutants.harness import MUTANTS, Correct, Mutant, Row

__all__ = [
    "MUTANTS",
    "Correct",
    "Mutant",
    "Row",
    "arrays",
    "bits",
    "elementwise",
    "equivalent",
    "lifetimes",
    "models",
    "moves",
    "places",
    "values",
]
