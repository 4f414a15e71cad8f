"""What ``--fast`` asks for: dot implementations by the format of the weights, where they gain."""

from __future__ import annotations

from ptir.backend.contract import Target
from ptir.backend.interpreter import query_of
from ptir.errors import UnsupportedError, UsageError
from ptir.functional.rounded import FAST
from ptir.ir.attributes import Attributes
from ptir.ops.implementations import functional
from ptir.params.quantized import quantization
from ptir.types import BF16, F32, U32, TensorType
from ptir.weights import QUANTIZERS
from ptir.weights.words import words_for


def fast_policies(format: str, target: Target) -> dict[str, str]:
    """The overrides of a model in this format; see docs/reference/accuracy.md for what they lose.

    It is the name of a quantization or of a storage type, or of several joined by ``+``. Raises
    ``UsageError`` for a format without such an implementation, and ``UnsupportedError`` where the
    device has no instruction for it.
    """
    if format not in FAST:
        raise UsageError(
            f"fast: weights in {format} have no dot implementation; those in {', '.join(FAST)} do"
            " (--dtype bf16, --quant int8, --quant int4)"
        )
    name, implementation = FAST[format]
    lowered = functional(name).implementations[implementation].lower(*_small_call(format))
    for instruction in lowered.instructions:
        if instruction.op != "composite":
            continue
        reason = target.backend.refusal(query_of(lowered, instruction), target.device)
        if reason is not None:
            raise UnsupportedError(
                f"fast: {target.backend.name} on {target.device.name!r} gains nothing from"
                f" {name}={implementation} ({reason}); leave --fast out, or compute its numbers"
                f" with --override {name}=force={implementation}"
            )
    return {name: f"force={implementation}"}


def _small_call(format: str) -> tuple[tuple[TensorType, ...], Attributes]:
    """A call of the functional: a few rows, 64 inputs and outputs."""
    x = TensorType(F32, (16, 64))
    if format not in QUANTIZERS:
        return (x, TensorType(BF16, (64, 64))), Attributes({"layout": "oi"})
    how = quantization(format)
    words = TensorType(U32, (64, words_for(64, how.bits)))
    groups = TensorType(BF16, (64, 64 // how.group))
    attributes = {"bits": how.bits, "group": how.group, "layout": "oi"}
    return (x, words, groups, groups), Attributes(attributes)
