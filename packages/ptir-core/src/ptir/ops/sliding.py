"""How a window slides along an axis: the one geometry of window ops, patches and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Sizes = Sequence[int] | None


@dataclass(frozen=True)
class WindowDimension:
    """A window of ``window`` taps along an axis of ``size`` elements.

    The axis is first spread (``base_dilation`` - 1 gaps between neighbours), then padded by ``low``
    and ``high``, of which negative ones crop; taps are ``window_dilation`` apart, and windows start
    every ``stride`` elements.
    """

    size: int
    window: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1

    @property
    def padded(self) -> int:
        """The size of the axis once spread and padded; negative where it is cropped too far."""
        spread = (self.size - 1) * self.base_dilation + 1 if self.size else 0
        return self.low + spread + self.high

    @property
    def span(self) -> int:
        """How many elements a window covers, the gaps between its taps included."""
        return (self.window - 1) * self.window_dilation + 1

    @property
    def count(self) -> int:
        """How many windows fit."""
        return max(0, (self.padded - self.span) // self.stride + 1)

    def tap(self, number: int) -> tuple[int, int]:
        """Where tap ``number`` of the first window lies, and the end behind that of the last."""
        start = number * self.window_dilation
        return start, start + (self.count - 1) * self.stride + 1

    @property
    def seen(self) -> tuple[int, ...]:
        """How many taps of each window see an element, not padding nor a gap."""
        return tuple(
            sum(self._is_element(start + tap * self.window_dilation) for tap in range(self.window))
            for start in range(-self.low, self.count * self.stride - self.low, self.stride)
        )

    def _is_element(self, place: int) -> bool:
        return place % self.base_dilation == 0 and 0 <= place < self.size * self.base_dilation


def window_dimensions(
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sizes = None,
    low: Sizes = None,
    high: Sizes = None,
    base_dilation: Sizes = None,
    window_dilation: Sizes = None,
) -> tuple[WindowDimension, ...]:
    """The window along each axis; what is not given is 1, or 0 for ``low`` and ``high``."""
    ones, zeros = (1,) * len(sizes), (0,) * len(sizes)
    columns = (
        *(sizes, window, ones if strides is None else strides),
        *(zeros if low is None else low, zeros if high is None else high),
        ones if base_dilation is None else base_dilation,
        ones if window_dilation is None else window_dilation,
    )
    return tuple(WindowDimension(*row) for row in zip(*columns, strict=True))
