"""What the functionals of images and of quantized weights refuse, and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

import ptir.functional as F
from ptir.capture import Tensor
from ptir.errors import TypeRuleError
from ptir.ir.graph import source
from ptir.types import parse_type
from together import together

IMAGE, FILTERS = "f32[1,5,6,4]", "f32[3,3,4,8]"
ONE_OR_TWO = "or one for H and one for W"
PADDING = "an integer of at least 0, (H, W), ((top, bottom), (left, right)), 'same' or 'valid'"
FOUR = {"bits": 4, "group": 16}
QUANTIZED = "f32[2,64] u32[3,8] f32[3,4] f32[3,4]"
BAD_BITS = "bits is 7; it must be 1, 2, 3, 4, 5, 6 or 8"

REFUSED = [
    (
        F.conv2d,
        f"{IMAGE} f32[3,3,5,8]",
        {},
        "conv2d(x f32[1,5,6,4], weight f32[3,3,5,8]): C 4 is not I 5 x groups 1; weight is"
        " [KH,KW,I,O]",
    ),
    (
        F.conv2d,
        f"{IMAGE} f32[3,3,3,8]",
        {},
        "conv2d(x f32[1,5,6,4], weight f32[3,3,3,8]): C 4 is not I 3 x groups 1; weight is"
        " [KH,KW,I,O]",
    ),
    (
        F.conv2d,
        f"{IMAGE} f32[8,3,3,3]",
        {"layout": "oihw", "groups": 2},
        "conv2d(x f32[1,5,6,4], weight f32[8,3,3,3]): C 4 is not I 3 x groups 2; weight is"
        " [O,I,KH,KW]",
    ),
    (
        F.conv2d,
        f"{IMAGE} f32[3,3,1,6]",
        {"groups": 4},
        "conv2d(weight f32[3,3,1,6]): O 6 is not a multiple of groups 4; weight is [KH,KW,I,O]",
    ),
    (
        F.conv2d,
        f"{IMAGE} f32[0,3,4,8]",
        {},
        "conv2d(weight f32[0,3,4,8]): the kernel is empty; KH and KW must be at least 1; weight is"
        " [KH,KW,I,O]",
    ),
    (
        F.conv2d,
        f"{IMAGE} {FILTERS} f32[4]",
        {},
        "conv2d(weight f32[3,3,4,8], bias f32[4]): O differs, 8 and 4; weight[KH,KW,I,O] and"
        " bias[O] are needed",
    ),
    (
        F.conv2d,
        f"f32[5,6,4] {FILTERS}",
        {},
        "conv2d(x f32[5,6,4]): x has 3 axes; x[N,H,W,C] is needed",
    ),
    (
        F.conv2d,
        f"f16[1,5,6,4] {FILTERS}",
        {},
        "conv2d(x f16[1,5,6,4]): x has dtype f16; one of f32, see .astype()",
    ),
    (
        F.conv2d,
        f"{IMAGE} i32[3,3,4,8]",
        {},
        "conv2d(weight i32[3,3,4,8]): weight has dtype i32; one of f32, f16, bf16, see .astype()",
    ),
    (
        F.conv2d,
        "f32[1,2,6,4] f32[3,3,4,8]",
        {},
        "conv2d(x f32[1,2,6,4]): H 2 with padding 0 and 0 is smaller than the window, 3",
    ),
    (
        F.conv2d,
        f"{IMAGE} {FILTERS}",
        {"dilation": (1, 4), "padding": ((0, 0), (1, 0))},
        "conv2d(x f32[1,5,6,4]): W 6 with padding 1 and 0 is smaller than the window, 9",
    ),
    *(
        (F.conv2d, f"{IMAGE} {FILTERS}", options, f"conv2d(): {message}")
        for options, message in (
            ({"layout": "nhwc"}, "layout is 'nhwc'; it must be one of hwio, oihw"),
            ({"groups": 0}, "groups is 0; it must be an integer, at least 1"),
            ({"strides": 0}, f"strides is 0; it must be an integer of at least 1, {ONE_OR_TWO}"),
            (
                {"strides": (1, 2, 1)},
                f"strides is (1, 2, 1); it must be an integer of at least 1, {ONE_OR_TWO}",
            ),
            (
                {"dilation": (1, True)},
                f"dilation is (1, True); it must be an integer of at least 1, {ONE_OR_TWO}",
            ),
            ({"padding": -1}, f"padding is -1; it must be {PADDING}"),
            ({"padding": "full"}, f"padding is 'full'; it must be {PADDING}"),
            ({"padding": (1, 1, 1)}, f"padding is (1, 1, 1); it must be {PADDING}"),
            ({"padding": ((1, 1), 0.5)}, f"padding is ((1, 1), 0.5); it must be {PADDING}"),
        )
    ),
    (
        F.max_pool2d,
        IMAGE,
        {"window": 0},
        f"max_pool2d(): window is 0; it must be an integer of at least 1, {ONE_OR_TWO}",
    ),
    (
        F.max_pool2d,
        IMAGE,
        {"window": (3, 7)},
        "max_pool2d(x f32[1,5,6,4]): W 6 with padding 0 and 0 is smaller than the window, 7",
    ),
    (
        F.max_pool2d,
        IMAGE,
        {"window": 3, "padding": ((0, 0), (1, 2))},
        "max_pool2d(x f32[1,5,6,4]): padding 1 and 2 of W is more than half the window, 3",
    ),
    (
        F.avg_pool2d,
        IMAGE,
        {"window": 2, "padding": 2},
        "avg_pool2d(x f32[1,5,6,4]): padding 2 and 2 of H is more than half the window, 2",
    ),
    (
        F.avg_pool2d,
        IMAGE,
        {"window": 2, "count_include_pad": 1},
        "avg_pool2d(): count_include_pad is 1; it must be True or False",
    ),
    (
        F.avg_pool2d,
        "i32[1,5,6,4]",
        {"window": 2},
        "avg_pool2d(x i32[1,5,6,4]): x has dtype i32; one of f32, see .astype()",
    ),
    (
        F.batch_norm,
        "f32[2,4] f32[4] f32[4] f32[3] f32[4]",
        {},
        "batch_norm(x f32[2,4], mean f32[3]): C differs, 4 and 3; x[...,C] and mean[C] are needed",
    ),
    (
        F.batch_norm,
        "f32[2,4] f32[4] f32[4] f32[4] f32[4]",
        {"epsilon": -1},
        "batch_norm(): epsilon is -1; it must be a finite number, at least 0",
    ),
    (
        F.quantized_linear,
        "f32[2,60] u32[3,8] f32[3,4] f32[3,4]",
        FOUR,
        "quantized_linear(x f32[2,60], scale f32[3,4]): K 60 is not G 4 x group 16",
    ),
    (
        F.quantized_linear,
        QUANTIZED,
        {"bits": 3, "group": 16},
        "quantized_linear(x f32[2,64], words u32[3,8]): K 64 values of 3 bits take 6 words; words"
        " has W 8",
    ),
    (
        F.quantized_linear,
        "f32[2,64] u32[3,8] f32[3,4] f32[3,2]",
        FOUR,
        "quantized_linear(scale f32[3,4], bias_groups f32[3,2]): G differs, 4 and 2; scale[N,G] and"
        " bias_groups[N,G] are needed",
    ),
    (
        F.quantized_linear,
        "f32[2,64] i32[3,8] f32[3,4] f32[3,4]",
        FOUR,
        "quantized_linear(words i32[3,8]): words has dtype i32; one of u32, see .astype()",
    ),
    (
        F.quantized_linear,
        f"{QUANTIZED} f32[2]",
        FOUR,
        "quantized_linear(words u32[3,8], bias f32[2]): N differs, 3 and 2; words[N,W] and bias[N]"
        " are needed",
    ),
    (F.quantized_linear, QUANTIZED, {"bits": 7, "group": 16}, f"quantized_linear(): {BAD_BITS}"),
    (
        F.quantized_linear,
        QUANTIZED,
        {"bits": 4, "group": 0},
        "quantized_linear(): group is 0; it must be an integer, at least 1",
    ),
    (F.affine_range, "f32[2,8]", {"bits": 7, "group": 4}, f"affine_range(): {BAD_BITS}"),
    (
        F.affine_range,
        "f32[2,8]",
        {"bits": 4, "group": 3},
        "affine_range(x f32[2,8]): group 3 does not divide axis 1 of 8",
    ),
    (
        F.affine_range,
        "i32[2,8]",
        {"bits": 4, "group": 4},
        "affine_range(x i32[2,8]): x has dtype i32; one of f32, f16, bf16, see .astype()",
    ),
    (
        F.affine_range,
        "f32[2,8]",
        {"bits": 4, "group": 4, "axis": 2},
        "affine_range(f32[2,8]): axis 2 is not in -2 <= axis < 2",
    ),
    (
        F.quantize,
        "f32[2,8] f32[2,2] f32[2,1]",
        {"bits": 4, "group": 4},
        "quantize(f32[2,8], f32[2,2], f32[2,1]): bias has shape [2, 1]; [1 or 2, 2] is needed",
    ),
    (
        F.dequantize,
        "u32[2,1] f32[2,2] f32[2,2]",
        {"bits": 4, "group": 4, "axis": -3},
        "dequantize(u32[2,1]): axis -3 is not in -2 <= axis < 2",
    ),
]


@together()
@pytest.mark.parametrize(("function", "types", "options", "message"), REFUSED)
def test_a_refused_call_says_what_rule_it_breaks_and_where(
    function, types, options, message
) -> None:
    operands = [Tensor(source(parse_type(text))) for text in types.split()]
    with pytest.raises(TypeRuleError) as caught:
        function(*operands, **options)
    found, place = str(caught.value).split("\n")
    assert found == message
    assert place.startswith(f"  at {Path(__file__)}:")
