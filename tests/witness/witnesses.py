"""What tests of the witnesses share: backends with one planted fault, and whether onnx is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ptir.backend.contract import Target
from ptir.ir import Instruction
from ptir_backend_ref import RefBackend
from ptir_testsuite.witnesses import onnx_nodes

Array = np.ndarray[Any, Any]
REQUIRED = os.environ.get("PTIR_REQUIRE_WITNESSES") == "1"
MISSING = onnx_nodes.available()

needs_onnx = pytest.mark.skipif(bool(MISSING) and not REQUIRED, reason=MISSING or "onnx is there")


class Faulty(RefBackend):
    """The reference backend with the results of one op replaced."""

    def __init__(self, op: str, fault: Callable[[Array, Sequence[Array]], Array]) -> None:
        super().__init__()
        self.op, self.fault = op, fault

    def prepare(self, instruction: Instruction, *rest: Any) -> Callable[..., Any]:
        right = super().prepare(instruction, *rest)
        if instruction.op != self.op:
            return right
        return lambda *operands: self.fault(np.array(right(*operands)), operands)


def faulty(op: str, fault: Callable[[Array, Sequence[Array]], Array]) -> Target:
    backend = Faulty(op, fault)
    return Target(backend, backend.devices()[0])
