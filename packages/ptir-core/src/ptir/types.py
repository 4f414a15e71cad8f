"""Element types and tensor types: the vocabulary every other room speaks.

``DType`` names an element type; ``TensorType`` adds a static shape and prints as ``f32[2,3]``.
NumPy is imported only when a ``numpy`` dtype is asked for.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from ptir.errors import TypeRuleError, unknown_name

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["bool", "int", "uint", "float"]

MAX_RANK: Final = 32
"""Most axes of a tensor."""

MAX_BYTES: Final = 2**56
"""Most bytes that the axes of a tensor span: more than a process can address anywhere, and so few
that offsets into wider elements, as some ops compute in, still fit in 63 bits."""

_SIGNIFICANDS: Final = {"f8e4m3fn": 4, "f8e5m2": 3, "f16": 11, "bf16": 8, "f32": 24, "f64": 53}


@dataclass(frozen=True)
class DType:
    """An element type: its PTIR name, its kind and its width in bits."""

    name: str
    kind: Kind
    bits: int
    numpy_name: str

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype that stores this type (``ml_dtypes`` for bf16 and f8)."""
        import ml_dtypes
        import numpy as np

        return np.dtype(getattr(ml_dtypes, self.numpy_name, None) or self.numpy_name)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return (self.bits + 7) // 8

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether values are signed or unsigned integers (bool is neither)."""
        return self.kind in ("int", "uint")

    @property
    def digits(self) -> int:
        """Bits of the longest run of integers from 0 that the type holds all of."""
        if self.is_float:
            return _SIGNIFICANDS[self.name]
        return 1 if self.kind == "bool" else self.bits - (self.kind == "int")

    def holds(self, other: DType) -> bool:
        """Whether every value of ``other`` is a value of this type, NaN and infinities included."""
        if self == other or other.kind == "bool":
            return True
        if self.kind == "bool" or (other.is_float and not self.is_float):
            return False
        if other.is_float:  # width does not tell: f16 has less range than bf16
            return self.bits > other.bits
        signed = self.kind != "uint" or other.kind == "uint"
        return signed and self.digits >= other.digits

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"DType({self.name})"


DTYPES: Final[dict[str, DType]] = {
    d.name: d
    for d in (
        DType("bool", "bool", 8, "bool"),
        DType("i8", "int", 8, "int8"),
        DType("i16", "int", 16, "int16"),
        DType("i32", "int", 32, "int32"),
        DType("i64", "int", 64, "int64"),
        DType("u8", "uint", 8, "uint8"),
        DType("u16", "uint", 16, "uint16"),
        DType("u32", "uint", 32, "uint32"),
        DType("u64", "uint", 64, "uint64"),
        DType("f16", "float", 16, "float16"),
        DType("bf16", "float", 16, "bfloat16"),
        DType("f32", "float", 32, "float32"),
        DType("f64", "float", 64, "float64"),
        DType("f8e4m3fn", "float", 8, "float8_e4m3fn"),
        DType("f8e5m2", "float", 8, "float8_e5m2"),
    )
}
_BY_NUMPY_NAME: Final = {one.numpy_name: one for one in DTYPES.values()}

BOOL, I32, U32 = DTYPES["bool"], DTYPES["i32"], DTYPES["u32"]
F16, BF16, F32, F64 = DTYPES["f16"], DTYPES["bf16"], DTYPES["f32"], DTYPES["f64"]
I64, U8, I8, U64 = DTYPES["i64"], DTYPES["u8"], DTYPES["i8"], DTYPES["u64"]


def dtype(name: Any) -> DType:
    """The element type called ``name``; raises ``TypeRuleError`` with the nearest names.

    NumPy's names and dtypes (``"float32"``, ``np.float32``) are taken too.
    """
    if isinstance(name, DType):
        return name
    called = name if isinstance(name, str) else getattr(name, "__name__", getattr(name, "name", ""))
    found = DTYPES.get(called) or _BY_NUMPY_NAME.get(called)
    if found is None:
        raise TypeRuleError(unknown_name("dtype", str(name), DTYPES))
    return found


def dtype_of(array: Any) -> DType:
    """The element type that stores a NumPy array's (or scalar's) elements without conversion."""
    return _stored_as(array.dtype)


@cache  # NumPy puts the name of a dtype together whenever it is asked
def _stored_as(dtype: Any) -> DType:
    found = _BY_NUMPY_NAME.get(dtype.name)
    if found is None:
        raise TypeRuleError(
            f"dtype {dtype} has no PTIR element type; convert to one of {', '.join(DTYPES)}"
        )
    return found


@dataclass(frozen=True)
class TensorType:
    """An element type and a static shape."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense array of this type."""
        return self.size * self.dtype.itemsize

    @property
    def excess(self) -> str:
        """What is too large about the type for any memory to hold it; empty where nothing is."""
        if self.rank > MAX_RANK:
            return f"has {self.rank} axes; a tensor has at most {MAX_RANK}"
        # An axis of size 0 leaves no elements, but the strides of the others are counted all the
        # same, by NumPy as by kernels.
        span = self.nbytes or self.dtype.itemsize * math.prod(size or 1 for size in self.shape)
        return f"spans {span} bytes; a tensor spans at most {MAX_BYTES}" if span > MAX_BYTES else ""

    def __hash__(self) -> int:
        return hash((self.dtype.name, self.shape))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """The same element type in another shape."""
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape with another element type."""
        return TensorType(dtype, self.shape)


_TYPE_TEXT = re.compile(r"(?P<dtype>[a-z0-9]+)\[(?P<shape>([0-9]{1,19}(,[0-9]{1,19})*)?)\]")


def parse_type(text: str) -> TensorType:
    """The type printed as ``text``, for example ``f32[2,3]``; raises ``TypeRuleError``."""
    match = _TYPE_TEXT.fullmatch(text)
    if match is None:
        raise TypeRuleError(f"{text!r} is not a tensor type; write it as f32[2,3]")
    sizes = match["shape"]
    shape = tuple(int(s) for s in sizes.split(",")) if sizes else ()
    return TensorType(dtype(match["dtype"]), shape)


def spec(element: str | DType, *shape: int) -> TensorType:
    """A tensor type from an element type name and axis sizes: ``spec("f32", 2, 3)``."""
    if not all(hasattr(size, "__index__") and size >= 0 for size in shape):
        raise TypeRuleError(f"spec({element}, {shape}): axis sizes must be integers >= 0")
    return TensorType(dtype(element), tuple(int(size) for size in shape))
