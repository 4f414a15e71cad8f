"""Independent witnesses: evidence that others made, run through a backend and graded by our rules.

``umath.run(backend)`` reads NumPy's tables of transcendental functions, ``onnx_nodes.run(backend)``
the node tests of the `onnx` package. Both take a backend's name and return a ``Report``.
"""

from collections.abc import Callable
from typing import Final

from ptir_testsuite.witnesses import onnx_nodes, umath
from ptir_testsuite.witnesses.report import Report, Row

WITNESSES: Final[dict[str, Callable[..., Report]]] = {"umath": umath.run, "onnx": onnx_nodes.run}

__all__ = ["WITNESSES", "Report", "Row", "onnx_nodes", "umath"]
