"""Two-dimensional convolution over images [N,H,W,C]: plain, grouped and depthwise."""

from __future__ import annotations

from typing import Final

from ptir.capture import Tensor, call
from ptir.functional.check import STORAGE, Checked
from ptir.functional.define import composite, functional
from ptir.functional.window import Padding, Pair, checked_window
from ptir.types import F32

Two = tuple[int, int]

LAYOUTS: Final = {"hwio": "KH,KW,I,O", "oihw": "O,I,KH,KW"}


SIGNATURES: Final = {
    layout: f"x[N,H,W,C] weight:{STORAGE}[{axes}] bias[O]" for layout, axes in LAYOUTS.items()
}
"""The operands of ``conv2d`` by layout."""


@functional("conv2d", "sums of products of a window's channels and weights, plus bias", SIGNATURES)
def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Two,
    low: Two,
    high: Two,
    dilation: Two,
    groups: int,
    layout: str,
) -> Tensor:
    patches = call(
        "extract_patches",
        x,
        window=weight.shape[:2] if layout == "hwio" else weight.shape[2:],
        strides=strides,
        low=low,
        high=high,
        window_dilation=dilation,
    )
    multiply = _product if groups == 1 else _grouped_product
    result = multiply(patches, weight.astype(F32), layout, groups)
    return result if bias is None else result + bias


def _product(patches: Tensor, weight: Tensor, layout: str, groups: int) -> Tensor:
    """Patches [N,OH,OW,KH,KW,C] times weights over the last three axes: [N,OH,OW,O]."""
    contract = (0, 1, 2) if layout == "hwio" else (2, 3, 1)
    return call("dot_general", patches, weight, lhs_contract=(3, 4, 5), rhs_contract=contract)


def _grouped_product(patches: Tensor, weight: Tensor, layout: str, groups: int) -> Tensor:
    """As ``_product``, each group of output channels over its own group of input channels."""
    *window, channels = patches.shape
    split = patches.reshape(*window, groups, channels // groups)
    if layout == "hwio":
        *kernel, outputs = weight.shape
        shape, batch, contract = (*kernel, groups, outputs // groups), 3, (0, 1, 2)
    else:
        outputs, *kernel = weight.shape
        shape, batch, contract = (groups, outputs // groups, *kernel), 0, (3, 4, 2)
    result = call(
        "dot_general",
        split,
        weight.reshape(shape),
        lhs_batch=(5,),
        rhs_batch=(batch,),
        lhs_contract=(3, 4, 6),
        rhs_contract=contract,
    )
    return result.transpose(1, 2, 3, 0, 4).reshape(*window[:3], outputs)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Pair = 1,
    padding: Padding = "valid",
    dilation: Pair = 1,
    groups: int = 1,
    layout: str = "hwio",
) -> Tensor:
    """Convolution (cross-correlation) of images x f32[N,H,W,C] with a bank of O filters.

    The weight is [KH,KW,C / groups,O] in layout "hwio" and [O,C / groups,KH,KW], as PyTorch stores
    it, in layout "oihw"; it may be stored as f32, f16 or bf16 and is computed with as f32. The bias
    is f32[O]. Outputs of group g see the channels of group g only; with groups = C the convolution
    is depthwise. Padding with zeros is a number, one for H and one for W, ((top, bottom), (left,
    right)), "valid" (none) or "same" (H / stride and W / stride outputs, rounded up; what is odd
    goes to the bottom and the right). Raises ``TypeRuleError``.
    """
    axes = LAYOUTS.get(layout, LAYOUTS["hwio"])
    signature = SIGNATURES.get(layout, SIGNATURES["hwio"])
    operands = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    checked = Checked("conv2d", signature, **operands)
    checked.choice("layout", layout, tuple(LAYOUTS))
    groups = checked.integer("groups", groups, 1)
    channels, inputs, outputs = (checked[axis] for axis in "CIO")
    message = f"C {channels} is not I {inputs} x groups {groups}; weight is [{axes}]"
    checked.require(channels == inputs * groups, "x weight", message)
    divided = f"O {outputs} is not a multiple of groups {groups}; weight is [{axes}]"
    checked.require(outputs % groups == 0, "weight", divided)
    kernel = checked["KH"], checked["KW"]
    message = f"the kernel is empty; KH and KW must be at least 1; weight is [{axes}]"
    checked.require(min(kernel) > 0, "weight", message)
    over = checked_window(checked, kernel, strides, padding, dilation)
    return composite("conv2d", *operands.values(), groups=groups, layout=layout, **over.named)
