"""Programs that edits start from beside random ones: written by hand, or captured functionals.

Random programs hold few regions and no composites; these hold little else.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import ptir
from ptir import functional as F

BY_HAND: Final = (
    """ptir 1.0
program(%0: i32[] input "x0", %1: f32[4] input "x1") -> i32[], f32[4] {
  %2 = constant() {value = i32[] 0x00000000} : i32[]
  %3, %4, %5 = while(%2, %0, %1) : i32[], i32[], f32[4] region (%0: i32[], %1: i32[], \
%2: f32[4]) -> bool[] {
    %3 = constant() {value = i32[] 0x05000000} : i32[]
    %4 = compare(%0, %3) {direction = "lt"} : bool[]
    return %4
  } region (%0: i32[], %1: i32[], %2: f32[4]) -> i32[], i32[], f32[4] {
    %3 = constant() {value = i32[] 0x01000000} : i32[]
    %4 = add(%0, %3) : i32[]
    %5 = mul(%1, %4) : i32[]
    %6 = add(%2, %2) : f32[4]
    return %4, %5, %6
  }
  return %4, %5
}
""",
    """ptir 1.0
program(%0: bool[] input "x0", %1: f32[2,3] input "x1", %2: f32[3,2] input "x2") -> f32[3,2] {
  %3 = cond(%0, %1, %2) : f32[3,2] region (%0: f32[2,3], %1: f32[3,2]) -> f32[3,2] {
    %2 = transpose(%0) {permutation = [1, 0]} : f32[3,2]
    %3 = maximum(%2, %1) : f32[3,2]
    return %3
  } region (%0: f32[2,3], %1: f32[3,2]) -> f32[3,2] {
    %2 = reshape(%0) {shape = [3, 2]} : f32[3,2]
    %3 = sub(%2, %1) : f32[3,2]
    return %3
  }
  %4 = neg(%3) : f32[3,2]
  return %4
}
""",
    """ptir 1.0
program(%0: f32[3] input "x0", %1: f32[4,3] input "x1", %2: i32[4] input "x2") -> f32[3], \
f32[4,3], i32[4] {
  %3, %4, %5 = scan(%0, %1, %2) {carries = 1, length = 4, reverse = false} : f32[3], f32[4,3], \
i32[4] region (%0: f32[3], %1: f32[3], %2: i32[]) -> f32[3], f32[3], i32[] {
    %3 = add(%0, %1) : f32[3]
    %4 = constant() {value = i32[] 0x02000000} : i32[]
    %5 = rem(%2, %4) : i32[]
    return %3, %0, %5
  }
  return %3, %4, %5
}
""",
    """ptir 1.0
function @twice_0(%0: f32[2,3]) -> f32[2,3] {
  %1 = add(%0, %0) : f32[2,3]
  return %1
}
function @outer_0(%0: f32[2,3], %1: f32[3]) -> f32[2,3], f32[3] {
  %2 = composite twice(%0) {scale = 2.0} @twice_0 : f32[2,3]
  %3 = broadcast_to(%1) {shape = [2, 3]} : f32[2,3]
  %4 = maximum(%2, %3) : f32[2,3]
  %5 = reduce(%4) {axes = [0], kind = "max"} : f32[3]
  return %4, %5
}
program(%0: f32[2,3] input "x0", %1: f32[3] input "x1") -> f32[2,3], f32[3], i32[2,2] {
  %2, %3 = composite outer(%0, %1) @outer_0 : f32[2,3], f32[3]
  %4, %5 = top_k(%2) {k = 2} : f32[2,2], i32[2,2]
  return %2, %3, %5
}
""",
    """ptir 1.0
program(%0: f32[5,4] input "x0", %1: i32[3] input "x1", %2: i32[2] input "x2") -> f32[3,4], \
f32[2,2], f32[5,3] {
  %3 = take(%0, %1) {axis = 0} : f32[3,4]
  %4 = dynamic_slice(%0, %2) {sizes = [2, 2]} : f32[2,2]
  %5 = iota() {axis = 1, dtype = !f32, shape = [5, 4]} : f32[5,4]
  %6 = dynamic_update_slice(%5, %4, %2) : f32[5,4]
  %7 = constant() {value = f32[] 0x0000003f} : f32[]
  %8 = pad(%6, %7) {high = [1, 0], interior = [0, 1], low = [-1, 0]} : f32[5,7]
  %9 = slice(%8) {limits = [5, 6], starts = [0, 0], strides = [1, 2]} : f32[5,3]
  return %3, %4, %9
}
""",
)
"""Texts with every kind of region, lowerings, and ops whose attributes and operands say where."""


@cache
def captured() -> tuple[str, ...]:
    """The texts of functionals on small operands: composites with their lowerings."""
    spec, f32 = ptir.spec, "f32"
    rows = spec(f32, 2, 4)
    row = spec(f32, 4)
    heads = spec(f32, 1, 2, 3, 4)
    found = (
        ptir.capture(lambda x: F.softmax(x), rows),
        ptir.capture(lambda x, w, b: F.layer_norm(x, w, b), rows, row, row),
        ptir.capture(lambda x, w: F.rms_norm(x, w, epsilon=1e-5) + F.silu(x), rows, row),
        ptir.capture(lambda q, k, v: F.attention(q, k, v, scale=0.5), heads, heads, heads),
        ptir.capture(lambda x, w: F.gelu(x @ w), rows, spec(f32, 4, 3)),
    )
    return tuple(map(str, found))
