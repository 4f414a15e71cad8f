"""``Tensor``: a lazy handle to a value, with Python's operators and NumPy's manners.

Arithmetic records; ``.numpy()``, ``float()``, ``bool()`` and printing materialize.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ptir.capture.promote import broadcast_shapes, promote, scalar_array, scalar_dtype
from ptir.errors import TypeRuleError
from ptir.types import BOOL, F32, F64, I32, DType, TensorType
from ptir.types import dtype as dtype_named

if TYPE_CHECKING:
    import numpy as np

    from ptir.ir.graph import Ref

Scalar = bool | int | float


def _call(name: str, *operands: Tensor, **attributes: Any) -> Tensor:
    from ptir.capture.lazy import call

    return call(name, *operands, **attributes)


class Tensor:
    """A value of static type: computed already, a stored parameter, or still to be computed."""

    __array_priority__ = 100
    __slots__ = ("__weakref__", "ref")

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        node = ref.node
        if not node.is_source:
            if node.payload is None:
                node.payload = weakref.WeakSet()
            node.payload.add(self)

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return self.ref.type

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.ref.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Axis sizes."""
        return self.ref.type.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.ref.type.size

    @property
    def T(self) -> Tensor:  # noqa: N802  NumPy's name
        """The axes in reverse order."""
        return self.transpose()

    # Reading: these materialize.

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array of its own. Raises ``CaptureError`` inside a capture."""
        from ptir.capture.lazy import buffer_of

        array: np.ndarray[Any, Any] = buffer_of(self.ref).download()
        return array

    def item(self) -> Scalar:
        """The only element as a Python scalar; raises ``TypeRuleError`` if there are more."""
        if self.size != 1:
            raise TypeRuleError(f"item() of {self.type}: needs exactly one element")
        value: Scalar = self.numpy().reshape(()).item()
        return value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self._exported().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._exported().__dlpack_device__()

    def _exported(self) -> Any:
        from ptir.capture.lazy import buffer_of

        buffer = buffer_of(self.ref)
        buffer.aliased = True
        return buffer.target.backend.export(buffer.handle, buffer.target.device)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise TypeError(f"{self.type} cannot be an index; cast it to i32")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of {self.type}: a 0-d tensor has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        from ptir.capture.lazy import readable

        return (
            f"Tensor({self.type}, {self.numpy()})" if readable(self.ref) else f"Tensor({self.type})"
        )

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __deepcopy__(self, memo: Any) -> Tensor:
        from ptir.capture.lazy import buffer_of, tensor

        return tensor(self.numpy(), backend=buffer_of(self.ref).target)

    def __reduce__(self) -> Any:
        """Pickled by value; it is unpickled on the default backend."""
        from ptir.capture.lazy import tensor

        return tensor, (self.numpy(),)

    __hash__ = object.__hash__

    # Arithmetic.

    def __neg__(self) -> Tensor:
        return _call("neg", self)

    def __abs__(self) -> Tensor:
        return _call("abs", self)

    def __invert__(self) -> Tensor:
        return _call("not", self)

    def __add__(self, other: Any) -> Tensor:
        return _binary("+", self, other)  # type: ignore[no-any-return]

    def __radd__(self, other: Any) -> Tensor:
        return _binary("+", other, self)  # type: ignore[no-any-return]

    def __sub__(self, other: Any) -> Tensor:
        return _binary("-", self, other)  # type: ignore[no-any-return]

    def __rsub__(self, other: Any) -> Tensor:
        return _binary("-", other, self)  # type: ignore[no-any-return]

    def __mul__(self, other: Any) -> Tensor:
        return _binary("*", self, other)  # type: ignore[no-any-return]

    def __rmul__(self, other: Any) -> Tensor:
        return _binary("*", other, self)  # type: ignore[no-any-return]

    def __truediv__(self, other: Any) -> Tensor:
        return _binary("/", self, other)  # type: ignore[no-any-return]

    def __rtruediv__(self, other: Any) -> Tensor:
        return _binary("/", other, self)  # type: ignore[no-any-return]

    def __floordiv__(self, other: Any) -> Tensor:
        return _binary("//", self, other)  # type: ignore[no-any-return]

    def __rfloordiv__(self, other: Any) -> Tensor:
        return _binary("//", other, self)  # type: ignore[no-any-return]

    def __mod__(self, other: Any) -> Tensor:
        return _binary("%", self, other)  # type: ignore[no-any-return]

    def __rmod__(self, other: Any) -> Tensor:
        return _binary("%", other, self)  # type: ignore[no-any-return]

    def __pow__(self, other: Any) -> Tensor:
        return _binary("**", self, other)  # type: ignore[no-any-return]

    def __rpow__(self, other: Any) -> Tensor:
        return _binary("**", other, self)  # type: ignore[no-any-return]

    def __and__(self, other: Any) -> Tensor:
        return _binary("&", self, other)  # type: ignore[no-any-return]

    def __rand__(self, other: Any) -> Tensor:
        return _binary("&", other, self)  # type: ignore[no-any-return]

    def __or__(self, other: Any) -> Tensor:
        return _binary("|", self, other)  # type: ignore[no-any-return]

    def __ror__(self, other: Any) -> Tensor:
        return _binary("|", other, self)  # type: ignore[no-any-return]

    def __xor__(self, other: Any) -> Tensor:
        return _binary("^", self, other)  # type: ignore[no-any-return]

    def __rxor__(self, other: Any) -> Tensor:
        return _binary("^", other, self)  # type: ignore[no-any-return]

    def __lshift__(self, other: Any) -> Tensor:
        return _binary("<<", self, other)  # type: ignore[no-any-return]

    def __rlshift__(self, other: Any) -> Tensor:
        return _binary("<<", other, self)  # type: ignore[no-any-return]

    def __rshift__(self, other: Any) -> Tensor:
        return _binary(">>", self, other)  # type: ignore[no-any-return]

    def __rrshift__(self, other: Any) -> Tensor:
        return _binary(">>", other, self)  # type: ignore[no-any-return]

    def __lt__(self, other: Any) -> Tensor:
        return _compare("lt", self, other)  # type: ignore[no-any-return]

    def __le__(self, other: Any) -> Tensor:
        return _compare("le", self, other)  # type: ignore[no-any-return]

    def __gt__(self, other: Any) -> Tensor:
        return _compare("gt", self, other)  # type: ignore[no-any-return]

    def __ge__(self, other: Any) -> Tensor:
        return _compare("ge", self, other)  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return _compare("eq", self, other)  # type: ignore[no-any-return]

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return _compare("ne", self, other)  # type: ignore[no-any-return]

    def __matmul__(self, other: Any) -> Tensor:
        right = _lifted(other)
        return matmul(self, right) if isinstance(right, Tensor) else NotImplemented

    def __rmatmul__(self, other: Any) -> Tensor:
        left = _lifted(other)
        return matmul(left, self) if isinstance(left, Tensor) else NotImplemented

    def __getitem__(self, key: Any) -> Tensor:
        from ptir.capture.indexing import index

        return index(self, key)

    # Movement.

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in row-major order in another shape; one size may be -1."""
        return _call("reshape", self, shape=self._resolve(self._sizes("reshape", shape)))

    def _sizes(self, name: str, given: tuple[Any, ...]) -> tuple[int, ...]:
        """The sizes that were given one by one or as one sequence."""
        sizes = given[0] if len(given) == 1 and isinstance(given[0], Sequence) else given
        if not all(hasattr(size, "__index__") for size in sizes):
            raise TypeRuleError(f"{name}({self.type}): sizes {tuple(sizes)} are not integers")
        return tuple(int(size) for size in sizes)

    def _resolve(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if sizes.count(-1) != 1:
            return sizes
        known = 1
        for size in sizes:
            known *= size if size != -1 else 1
        if known == 0 or self.size % known:
            raise TypeRuleError(f"reshape({self.type}) to {list(sizes)}: sizes do not divide")
        return tuple(self.size // known if size == -1 else size for size in sizes)

    def transpose(self, *axes: int) -> Tensor:
        """The axes in the given order, reversed without arguments; negative axes count back."""
        order = tuple(self._axis("transpose", a) for a in axes or range(self.ndim)[::-1])
        return _call("transpose", self, permutation=order)

    def broadcast_to(self, *shape: Any) -> Tensor:
        """The elements repeated to ``shape`` under NumPy's broadcasting rule."""
        sizes = self._sizes("broadcast_to", shape)
        return self if sizes == self.shape else _call("broadcast_to", self, shape=sizes)

    def astype(self, dtype: str | DType) -> Tensor:
        """The elements cast to ``dtype`` (semantics of the op ``cast``)."""
        wanted = dtype_named(dtype)
        return self if wanted == self.dtype else _call("cast", self, dtype=wanted)

    # Reductions.

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """The sum over ``axis`` (all axes by default); integers wrap, bools are counted in i32."""
        counted = self.astype(I32) if self.dtype == BOOL else self
        return counted._reduce("sum", axis, keepdims)

    def prod(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """The product over ``axis`` (all axes by default); integers wrap."""
        return self._reduce("prod", axis, keepdims)

    def any(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Whether any element over ``axis`` is true, or not zero."""
        return self.astype(BOOL)._reduce("any", axis, keepdims)

    def all(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """Whether all elements over ``axis`` are true, or not zero."""
        return self.astype(BOOL)._reduce("all", axis, keepdims)

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """The maximum over ``axis``; NaN propagates."""
        return self._reduce("max", axis, keepdims)

    def min(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """The minimum over ``axis``; NaN propagates."""
        return self._reduce("min", axis, keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """The arithmetic mean over ``axis``: the sum divided by the count.

        Computed in f32, in f64 for f64: integers and bools give f32, f16 and bf16 are rounded once.
        """
        wide = self if self.dtype == F64 else self.astype(F32)
        total = wide._reduce("sum", axis, keepdims)
        mean = total / float(self.size // max(total.size, 1))
        return mean.astype(self.dtype) if self.dtype.is_float else mean

    def argmax(self, axis: int | None = -1) -> Tensor:
        """Index (i32) of the first maximum along ``axis``; a NaN counts as the maximum.

        None looks at all elements in row-major order.
        """
        if axis is None:
            return self.reshape(self.size).argmax(0)
        return _call("arg_max", self, axis=self._axis("argmax", axis))

    def _axis(self, name: str, axis: Any) -> int:
        whole = hasattr(axis, "__index__") and not isinstance(axis, bool)
        if not whole or not -self.ndim <= axis < self.ndim:
            rule = f"an integer in {-self.ndim} .. {self.ndim - 1}" if self.ndim else "none"
            raise TypeRuleError(
                f"{name}({self.type}): axis {axis!r} is out of range; it has {rule}"
            )
        return int(axis) % self.ndim

    def argmin(self, axis: int | None = -1) -> Tensor:
        """Index (i32) of the first minimum along ``axis``; a NaN counts as the minimum."""
        if axis is None:
            return self.reshape(self.size).argmin(0)
        return _call("arg_min", self, axis=self._axis("argmin", axis))

    def _reduce(self, kind: str, axis: int | Sequence[int] | None, keepdims: bool) -> Tensor:
        chosen = range(self.ndim) if axis is None else axis
        listed = (
            chosen if isinstance(chosen, Sequence) and not isinstance(chosen, str) else [chosen]
        )
        axes = tuple(sorted({self._axis(kind, a) for a in listed}))
        logical = {"max": "any", "min": "all"} if self.dtype == BOOL else {}
        result = _call("reduce", self, axes=axes, kind=logical.get(kind, kind))
        if not keepdims:
            return result
        return result.reshape(tuple(1 if i in axes else s for i, s in enumerate(self.shape)))


def constant(value: Any, dtype: DType, shape: tuple[int, ...] = ()) -> Tensor:
    """A constant scalar broadcast to ``shape``; raises ``TypeRuleError`` if it does not fit."""
    from ptir.ir.attributes import Literal

    literal = Literal.of(scalar_array(value, dtype))
    return _call("constant", value=literal).broadcast_to(shape)


def unify(*values: Tensor | Scalar) -> tuple[Tensor, ...]:
    """Tensors of one element type and shape: promotion first, then broadcasting."""
    tensors = [v for v in values if isinstance(v, Tensor)]
    common = tensors[0].dtype
    for tensor in tensors[1:]:
        common = promote(common, tensor.dtype)
    for value in values:
        if not isinstance(value, Tensor):
            common = promote(common, scalar_dtype(value, common))
    shape = broadcast_shapes([t.shape for t in tensors])
    return tuple(
        v.astype(common).broadcast_to(shape)
        if isinstance(v, Tensor)
        else constant(v, common, shape)
        for v in values
    )


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """NumPy's ``a @ b``: the last axis of ``a`` against the second last of ``b``, batched."""
    if not a.ndim or not b.ndim:
        raise TypeRuleError(f"matmul({a.type}, {b.type}): operands need at least one axis")
    if a.ndim == 1 or b.ndim == 1:
        left, right = a, b
        if a.ndim == 1:
            left = a.reshape(1, a.shape[0])
        if b.ndim == 1:
            right = b.reshape(b.shape[0], 1)
        full = matmul(left, right)
        drop = {full.ndim - 2} if a.ndim == 1 else set()
        drop |= {full.ndim - 1} if b.ndim == 1 else set()
        return full.reshape(tuple(s for i, s in enumerate(full.shape) if i not in drop))
    common = promote(a.dtype, b.dtype)
    a, b = a.astype(common), b.astype(common)
    if b.ndim == 2:
        contract = {"lhs_contract": (a.ndim - 1,), "rhs_contract": (0,)}
        return _call("dot_general", a, b, **contract)
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    a, b = a.broadcast_to((*batch, *a.shape[-2:])), b.broadcast_to((*batch, *b.shape[-2:]))
    axes, rank = tuple(range(len(batch))), len(batch)
    contract = {"lhs_contract": (rank + 1,), "rhs_contract": (rank,)}
    return _call("dot_general", a, b, lhs_batch=axes, rhs_batch=axes, **contract)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """True division: integers are divided as f32."""
    if not a.dtype.is_float:
        a, b = a.astype(F32), b.astype(F32)
    return _call("div", a, b)


def _misses(rest: Tensor, b: Tensor) -> Tensor:
    """Where a truncating remainder has not the divisor's sign, so that Python's differs."""
    zero = constant(0, rest.dtype, rest.shape)
    negative = _call("compare", rest, zero, direction="lt")
    differs = negative ^ _call("compare", b, zero, direction="lt")
    return _call("and", _call("compare", rest, zero, direction="ne"), differs)


def _remainder(a: Tensor, b: Tensor) -> Tensor:
    """Python's ``%``: the result has the divisor's sign, a zero of floats too."""
    rest = _call("rem", a, b)
    result = _call("select", _misses(rest, b), _call("add", rest, b), rest)
    if not rest.dtype.is_float:
        return result
    zero = constant(0, rest.dtype, rest.shape)
    some = _call("compare", rest, zero, direction="ne")
    return _call("select", some, result, _call("mul", _call("sign", b), zero))


def _floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """Python's ``//``; integers by zero give all ones, as the op ``div`` does."""
    quotient = _call("div", a, b)
    if a.dtype.is_float:
        return _call("floor", quotient)
    if a.dtype.kind == "uint":
        return quotient
    zero, one = constant(0, a.dtype, a.shape), constant(1, a.dtype, a.shape)
    divided = _call("compare", b, zero, direction="ne")
    below = _call("and", _misses(_call("rem", a, b), b), divided)
    return _call("select", below, _call("sub", quotient, one), quotient)


def _named(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: _call(name, a, b)


_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "/": _divide,
    "//": _floor_divide,
    "%": _remainder,
    **{
        symbol: _named(name)
        for symbol, name in {
            "+": "add",
            "-": "sub",
            "*": "mul",
            "**": "pow",
            "&": "and",
            "|": "or",
            "^": "xor",
            "<<": "shift_left",
            ">>": "shift_right",
        }.items()
    },
}


def _binary(symbol: str, a: Any, b: Any) -> Any:
    """``a symbol b`` after promotion and broadcasting; at least one of them is a tensor."""
    lifted = _lift_pair(a, b)
    return NotImplemented if lifted is None else _BINARY[symbol](*unify(*lifted))


def _compare(direction: str, a: Any, b: Any) -> Any:
    lifted = _lift_pair(a, b)
    if lifted is None:
        return NotImplemented
    return _call("compare", *unify(*lifted), direction=direction)


def _lift_pair(a: Any, b: Any) -> tuple[Any, Any] | None:
    """Both operands as tensors or Python scalars, or None when one is neither."""
    pair = (_lifted(a), _lifted(b))
    return None if pair[0] is None or pair[1] is None else pair


def _lifted(value: Any) -> Tensor | Scalar | None:
    """NumPy operands beside a tensor: scalars stay scalars, arrays become constants."""
    import numpy as np

    if isinstance(value, Tensor | bool | int | float):
        return value
    if isinstance(value, np.generic):
        scalar: Scalar = value.item()
        return scalar
    if isinstance(value, np.ndarray):
        from ptir.ops.record import literal

        return _call("constant", value=literal(value))
    return None


__all__ = ["Scalar", "Tensor", "constant", "matmul", "unify"]
