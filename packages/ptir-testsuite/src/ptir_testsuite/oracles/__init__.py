"""The oracles: what every op's results must be, computed without any backend."""

from __future__ import annotations

from ptir_testsuite.oracles import (
    composites,
    contraction,
    control,
    creation,
    elementwise,
    folds,
    images,
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
    "composites",
    "contraction",
    "control",
    "creation",
    "elementwise",
    "folds",
    "images",
    "movement",
    "oracle",
    "places",
    "quantization",
    "run_block",
    "transcendental",
    "windows",
]
