"""A backend for pass tests: it runs the ops' references and refuses what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from evaluation import evaluate
from ptir.backend.contract import BackendPass, Device, OpQuery
from ptir.backend.interpreter import Interpreter
from ptir.ir.program import Block, Instruction
from ptir.passes.context import PassContext
from ptir.types import TensorType, dtype_of

Refusal = Callable[[OpQuery], "str | None"]
DEVICE = Device(0, "paper", "reference")


@dataclass
class PaperBackend(Interpreter):
    """Takes every op and no composite, unless ``refuses`` says otherwise."""

    refuses: Refusal = lambda query: "composites are lowered" if query.is_composite else None
    lifts_casts: bool = False
    own: tuple[BackendPass, ...] = ()
    asked: list[OpQuery] = field(default_factory=list)
    name = "paper"

    def devices(self) -> Sequence[Device]:
        return (DEVICE,)

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        self.asked.append(query)
        return self.refuses(query)

    def passes(self) -> Sequence[BackendPass]:
        return self.own

    def upload(self, array: Any, device: Device, *, borrow: bool = False) -> Any:
        return array.copy()

    def download(self, handle: Any, device: Device) -> Any:
        return handle.copy()

    def step(self, instruction: Instruction, operands: Sequence[Any], device: Device) -> Any:
        types = tuple(_type_of(array) for array in operands)
        count = len(operands)
        outputs = tuple(range(count, count + len(instruction.types)))
        alone = Instruction(
            instruction.op,
            tuple(range(count)),
            instruction.attributes,
            instruction.types,
            instruction.regions,
        )
        return evaluate(Block(types, (alone,), outputs), operands)


def _type_of(array: Any) -> Any:
    return TensorType(dtype_of(array), array.shape)


@pytest.fixture
def backend() -> PaperBackend:
    return PaperBackend()


@pytest.fixture
def context(backend: PaperBackend) -> PassContext:
    return PassContext(backend, DEVICE)
