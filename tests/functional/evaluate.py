"""A tiny interpreter of blocks over the references of the op records, and calls through it.

It knows no backend and no pass: what it computes is what a functional's lowering says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptir.capture import Tensor, lower
from ptir.ir.attributes import Attributes
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops import numerics
from ptir.ops.implementations import functional
from ptir.ops.record import OPS
from ptir.ops.verify import verify
from ptir.types import TensorType, dtype_of


def evaluate(block: Block, *operands: Any, use: dict[str, str] | None = None) -> tuple[Any, ...]:
    """The outputs of ``block``; ``use`` names implementations of composites by functional."""
    values = list(operands)
    for instruction in block.instructions:
        arguments = [values[v] for v in instruction.operands]
        with np.errstate(all="ignore"):
            results = _apply(instruction, arguments, use or {})
        found = tuple(type_of(result) for result in results)
        assert found == instruction.types, (instruction.name, found, instruction.types)
        values.extend(results)
    return tuple(values[v] for v in block.outputs)


def _apply(instruction: Instruction, arguments: list[Any], use: dict[str, str]) -> tuple[Any, ...]:
    if instruction.op == "composite":
        return evaluate(_chosen(instruction, arguments, use), *arguments, use=use)
    reference = OPS[instruction.op].reference
    regions = [lambda *a, r=r: evaluate(r, *a, use=use) for r in instruction.regions]
    more = {"regions": regions} if regions else {}
    result = reference(numerics, *arguments, **instruction.attributes, **more)
    return result if isinstance(result, tuple) else (result,)


def _chosen(instruction: Instruction, arguments: list[Any], use: dict[str, str]) -> Block:
    name = use.get(instruction.name)
    if name is None:
        return instruction.regions[0]
    types = [type_of(a) for a in arguments]
    own = Attributes({k: v for k, v in instruction.attributes.items() if k != "name"})
    return functional(instruction.name).implementations[name].lower(types, own)


def type_of(array: Any) -> TensorType:
    return TensorType(dtype_of(array), tuple(array.shape))


def captured(function: Callable[..., Any], *arrays: Any, **keywords: Any) -> Block:
    """The verified block of ``function`` on tensors of the arrays' types.

    Keyword arguments that are arrays become operands too; the others stay as they are.
    """
    names = [name for name, value in keywords.items() if isinstance(value, np.ndarray)]
    rest = {name: value for name, value in keywords.items() if name not in names}

    def call(*tensors: Tensor) -> Any:
        named = zip(names, tensors[len(arrays) :], strict=True)
        return function(*tensors[: len(arrays)], **dict(named), **rest)

    operands = [*arrays, *(keywords[name] for name in names)]
    block = lower(call, [type_of(a) for a in operands], {})
    verify(Program(block, tuple(Port(f"x{i}") for i in range(len(operands)))))
    return block


def run(
    function: Callable[..., Any], *arrays: Any, use: dict[str, str] | None = None, **keywords: Any
) -> Any:
    """``function`` on NumPy arrays: a NumPy array, or a tuple of them."""
    block = captured(function, *arrays, **keywords)
    named = [value for value in keywords.values() if isinstance(value, np.ndarray)]
    results = evaluate(block, *arrays, *named, use=use)
    return results[0] if len(results) == 1 else results


def f32(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    """Normal f32 numbers of both signs."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def i32(*values: int) -> Any:
    return np.array(values, np.int32)
