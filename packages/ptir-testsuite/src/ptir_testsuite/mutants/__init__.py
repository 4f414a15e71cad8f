"""Planted faults, each of which the corpus must catch: one that catches nothing proves nothing."""

from ptir_testsuite.mutants import (
    arrays,
    bits,
    elementwise,
    equivalent,
    kernels,
    lifetimes,
    memory,
    models,
    moves,
    places,
    replays,
    schedules,
    turns,
    values,
)
from ptir_testsuite.mutants.harness import MUTANTS, Correct, Mutant, Row
from ptir_testsuite.mutants.planting import PLANTED

__all__ = [
    "MUTANTS",
    "PLANTED",
    "Correct",
    "Mutant",
    "Row",
    "arrays",
    "bits",
    "elementwise",
    "equivalent",
    "kernels",
    "lifetimes",
    "memory",
    "models",
    "moves",
    "places",
    "replays",
    "schedules",
    "turns",
    "values",
]
