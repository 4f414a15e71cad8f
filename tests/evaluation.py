"""What rules are checked with, for the tests of passes and programs too."""

from ptir.rewrite.awkward import (
    awkward,
    awkward_values,
    evaluate,
    same_bits,
    same_but_for_nan,
)

__all__ = ["awkward", "awkward_values", "evaluate", "same_bits", "same_but_for_nan"]
