"""How weights of few bits are stored: one record a format, and the table of all of them."""

from ptir.weights.formats import FORMATS, PACKED_BITS, QUANTIZERS, affine
from ptir.weights.record import FusedFormat, Quantity, StoredArray, WeightFormat

__all__ = [
    "FORMATS",
    "PACKED_BITS",
    "QUANTIZERS",
    "FusedFormat",
    "Quantity",
    "StoredArray",
    "WeightFormat",
    "affine",
]
