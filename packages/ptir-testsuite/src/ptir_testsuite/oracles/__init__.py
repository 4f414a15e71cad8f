"""The oracles: what every op's results must be, computed without any backend."""

from __future__ import annotations

from ptir_testsuite.oracles import (
    contraction,
    control,
    creation,
    elementwise,
    folds,
    movement,
    places,
    quantization,
    transcendental,
    windows,
)
from ptir_testsuite.oracles.control import NoOracleError, run_block
from ptir_testsuite.oracles.table import ORACLES, Given, Oracle, oracle

__all__ = [
    "ORACLES",
    "Given",
    "NoOracleError",
    "Oracle",
    "contraction",
    "control",
    "creation",
    "elementwise",
    "folds",
    "movement",
    "oracle",
    "places",
    "quantization",
    "run_block",
    "transcendental",
    "windows",
]
