"""Rotary position embedding."""

from __future__ import annotations

from ptir.capture import Tensor
from ptir.functional import elementwise as each
from ptir.functional.arrays import concat, constant
from ptir.functional.check import Checked
from ptir.functional.define import composite, functional
from ptir.types import F32


@functional("rope", "rotates pairs of the last axis by angles that grow with the position")
def _rope(
    x: Tensor,
    positions: Tensor,
    frequencies: Tensor | None = None,
    *,
    theta: float,
    layout: str,
    rotary: int,
) -> Tensor:
    B, H, T, D = x.shape
    if frequencies is None:
        frequencies = pair_frequencies(theta, rotary)
    angles = positions.astype(F32).reshape(B, 1, T, 1) * frequencies
    cosine, sine = each.cos(angles), each.sin(angles)
    pairs, half = x[..., :rotary], rotary // 2
    if layout == "interleaved":
        pairs = pairs.reshape(B, H, T, half, 2).transpose(0, 1, 2, 4, 3).reshape(B, H, T, rotary)
    a, b = pairs[..., :half], pairs[..., half:]
    rotated = concat([a * cosine - b * sine, b * cosine + a * sine], axis=-1)
    if layout == "interleaved":
        rotated = (
            rotated.reshape(B, H, T, 2, half).transpose(0, 1, 2, 4, 3).reshape(B, H, T, rotary)
        )
    return rotated if rotary == D else concat([rotated, x[..., rotary:]], axis=-1)


def pair_frequencies(theta: float, rotary: int) -> Tensor:
    """``theta ** (-2 i / rotary)`` for each pair i, computed in f64 and rounded once."""
    return constant([theta ** (-2 * i / rotary) for i in range(rotary // 2)])


def rope(
    x: Tensor,
    positions: Tensor,
    frequencies: Tensor | None = None,
    *,
    theta: float = 10000.0,
    layout: str = "half",
    rotary: int | None = None,
) -> Tensor:
    """X f32[B,H,T,D] with pairs of its last axis rotated by ``positions`` i32[B,T].

    Pair i of the first ``rotary`` dimensions (all by default) is rotated by position times
    ``theta ** (-2 i / rotary)``, or times ``frequencies[i]`` where ``frequencies``
    f32[rotary / 2] are given; it is (i, i + rotary / 2) in layout "half" and (2 i, 2 i + 1) in
    layout "interleaved". The other dimensions stay. Raises ``TypeRuleError``. Source: Su et al.,
    "RoFormer", 2021.
    """
    signature = "x[B,H,T,D] positions:i32[B,T] frequencies[P]"
    given = {} if frequencies is None else {"frequencies": frequencies}
    checked = Checked("rope", signature, x=x, positions=positions, **given)
    D = checked["D"]
    rotated = D if rotary is None else checked.integer("rotary", rotary, 2)
    even = 2 <= rotated <= D and rotated % 2 == 0
    checked.require(even, "x", f"rotary {rotated} must be even and in 2 .. D = {D}")
    if given:
        pairs = (
            f"frequencies are {checked['P']}; rotary {rotated} needs one per pair: {rotated // 2}"
        )
        checked.require(checked["P"] == rotated // 2, "frequencies", pairs)
    attributes = {
        "theta": checked.number("theta", theta, above=0),
        "layout": checked.choice("layout", layout, ("half", "interleaved")),
    }
    return composite("rope", x, positions, *given.values(), rotary=rotated, **attributes)
