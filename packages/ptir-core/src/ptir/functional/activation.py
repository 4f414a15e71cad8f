"""Activation functions that are worth fusing: gelu, silu, swiglu."""

from __future__ import annotations

import math

from ptir.capture import Tensor
from ptir.functional import elementwise as each
from ptir.functional.check import Checked
from ptir.functional.define import composite, functional


@functional("gelu", "x times the normal distribution function of x, exact or by tanh")
def _gelu(x: Tensor, *, approximate: str) -> Tensor:
    if approximate == "none":
        return x * 0.5 * (each.erf(x * math.sqrt(0.5)) + 1.0)
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (each.tanh(inner) + 1.0)


@functional("silu", "x / (1 + exp(-x))")
def _silu(x: Tensor) -> Tensor:
    return x / (each.exp(-x) + 1.0)


@functional("swiglu", "silu(gate) * up")
def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate) * up


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit of x f32[...]; ``approximate``: "none" (erf) or "tanh".

    Raises ``TypeRuleError``. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    checked = Checked("gelu", "x[...]", x=x)
    approximate = checked.choice("approximate", approximate, ("none", "tanh"))
    return composite("gelu", x, approximate=approximate)


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)`` of x f32[...]; raises ``TypeRuleError``."""
    Checked("silu", "x[...]", x=x)
    return composite("silu", x)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` of two f32 tensors of one shape; raises ``TypeRuleError``.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.
    """
    checked = Checked("swiglu", "gate[...] up[...]", gate=gate, up=up)
    same = gate.shape == up.shape
    checked.require(same, "gate up", "gate and up differ in shape; they must be equal")
    return composite("swiglu", gate, up)
