"""``Tensor``: a lazy handle to a value, with Python's operators and NumPy's manners.

Arithmetic records; ``.numpy()``, ``float()``, ``bool()`` and ``print`` materialize. ``repr``, and
what a notebook shows, compute nothing. What an operator or an index means is said on graph values,
in ``operators`` and ``indexing``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ptir.backend.buffer import Buffer
from ptir.backend.contract import Target
from ptir.capture import operands
from ptir.capture.indexing import index
from ptir.capture.lazy import buffer_of, default_target, recorded
from ptir.capture.operands import Scalar, lifted
from ptir.capture.operators import OPERATORS, Binary, matmul
from ptir.capture.shown import tensor_card, tensor_line
from ptir.errors import TypeRuleError
from ptir.ir.graph import Ref, source
from ptir.notebook import Card, Displayed
from ptir.ops.record import op
from ptir.types import BOOL, F32, F64, I32, DType, TensorType, dtype_of
from ptir.types import dtype as dtype_named

if TYPE_CHECKING:
    import numpy as np

Method = Callable[["Tensor", Any], "Tensor"]


def _operator(symbol: str, reflected: bool = False) -> Method:
    """The method of an operator, or the one of its right operand."""
    function = OPERATORS[symbol]

    def method(self: Tensor, other: Any) -> Tensor:
        left, right = (other, self) if reflected else (self, other)
        return _applied(function, left, right)  # type: ignore[no-any-return]

    return method


def _both_sides(symbol: str) -> tuple[Method, Method]:
    return _operator(symbol), _operator(symbol, reflected=True)


class Tensor(Displayed):
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
        return tensor_line(self.ref)

    def __str__(self) -> str:
        return tensor_line(self.ref, compute=True)

    def card(self) -> Card:
        """What a notebook shows: type, where it is, and values that are there and few."""
        return tensor_card(self.ref)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return from_host(self.numpy(), buffer_of(self.ref).target)

    def __reduce__(self) -> Any:
        """Pickled by value; it is unpickled on the default backend."""
        return from_host, (self.numpy(),)

    __hash__ = object.__hash__

    # Operators.

    def __neg__(self) -> Tensor:
        return call("neg", self)

    def __abs__(self) -> Tensor:
        return call("abs", self)

    def __invert__(self) -> Tensor:
        return call("not", self)

    __add__, __radd__ = _both_sides("+")
    __sub__, __rsub__ = _both_sides("-")
    __mul__, __rmul__ = _both_sides("*")
    __truediv__, __rtruediv__ = _both_sides("/")
    __floordiv__, __rfloordiv__ = _both_sides("//")
    __mod__, __rmod__ = _both_sides("%")
    __pow__, __rpow__ = _both_sides("**")
    __and__, __rand__ = _both_sides("&")
    __or__, __ror__ = _both_sides("|")
    __xor__, __rxor__ = _both_sides("^")
    __lshift__, __rlshift__ = _both_sides("<<")
    __rshift__, __rrshift__ = _both_sides(">>")
    __lt__, __gt__ = _operator("<"), _operator(">")
    __le__, __ge__ = _operator("<="), _operator(">=")

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return _applied(OPERATORS["=="], self, other)  # type: ignore[no-any-return]

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return _applied(OPERATORS["!="], self, other)  # type: ignore[no-any-return]

    def __matmul__(self, other: Any) -> Tensor:
        right = _operand(other)
        return Tensor(matmul(self.ref, right)) if isinstance(right, Ref) else NotImplemented

    def __rmatmul__(self, other: Any) -> Tensor:
        left = _operand(other)
        return Tensor(matmul(left, self.ref)) if isinstance(left, Ref) else NotImplemented

    def __getitem__(self, key: Any) -> Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        return self._for(index(self.ref, tuple(map(_bare, keys))))

    # Movement.

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in row-major order in another shape; one size may be -1."""
        return call("reshape", self, shape=self._resolve(self._sizes("reshape", shape)))

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
        return call("transpose", self, permutation=order)

    def broadcast_to(self, *shape: Any) -> Tensor:
        """The elements repeated to ``shape`` under NumPy's broadcasting rule."""
        return self._for(operands.broadcast(self.ref, self._sizes("broadcast_to", shape)))

    def astype(self, dtype: str | DType) -> Tensor:
        """The elements cast to ``dtype`` (semantics of the op ``cast``)."""
        return self._for(operands.converted(self.ref, dtype_named(dtype)))

    def _for(self, ref: Ref) -> Tensor:
        """A tensor for a value made of this one's; this one if it is the same."""
        return self if ref is self.ref else Tensor(ref)

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
        return self._first("arg_max", "argmax", axis)

    def argmin(self, axis: int | None = -1) -> Tensor:
        """Index (i32) of the first minimum along ``axis``; a NaN counts as the minimum."""
        return self._first("arg_min", "argmin", axis)

    def _first(self, name: str, method: str, axis: int | None) -> Tensor:
        if axis is None:
            return self.reshape(self.size)._first(name, method, 0)
        return call(name, self, axis=self._axis(method, axis))

    def _axis(self, name: str, axis: Any) -> int:
        whole = hasattr(axis, "__index__") and not isinstance(axis, bool)
        if not whole or not -self.ndim <= axis < self.ndim:
            rule = f"an integer in {-self.ndim} .. {self.ndim - 1}" if self.ndim else "none"
            raise TypeRuleError(
                f"{name}({self.type}): axis {axis!r} is out of range; it has {rule}"
            )
        return int(axis) % self.ndim

    def _reduce(self, kind: str, axis: int | Sequence[int] | None, keepdims: bool) -> Tensor:
        chosen = range(self.ndim) if axis is None else axis
        listed = (
            chosen if isinstance(chosen, Sequence) and not isinstance(chosen, str) else [chosen]
        )
        axes = tuple(sorted({self._axis(kind, a) for a in listed}))
        logical = {"max": "any", "min": "all"} if self.dtype == BOOL else {}
        result = call("reduce", self, axes=axes, kind=logical.get(kind, kind))
        if not keepdims:
            return result
        return result.reshape(tuple(1 if i in axes else s for i, s in enumerate(self.shape)))


# --- recording ---


def call_multi(name: str, *tensors: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
    """Record the op called ``name`` on tensors; returns all results. Raises ``TypeRuleError``."""
    return record(op(name).multi(*(tensor.ref for tensor in tensors), **attributes))


def call(name: str, *tensors: Tensor, **attributes: Any) -> Tensor:
    """Record the op called ``name`` on tensors; returns its only result."""
    return call_multi(name, *tensors, **attributes)[0]


def record(refs: Sequence[Ref]) -> tuple[Tensor, ...]:
    """Tensors for the results of one node, which ``lazy.recorded`` enters."""
    return tuple(map(Tensor, recorded(refs)))


def full(value: Any, dtype: DType, shape: tuple[int, ...] = ()) -> Tensor:
    """A constant scalar broadcast to ``shape``; raises ``TypeRuleError`` if it does not fit."""
    return Tensor(operands.full(value, dtype)).broadcast_to(shape)


def unify(*values: Tensor | Scalar) -> tuple[Tensor, ...]:
    """Tensors of one element type and shape: promotion first, then broadcasting."""
    return tuple(map(Tensor, operands.unify(*map(_bare, values))))


def _applied(function: Binary, a: Any, b: Any) -> Any:
    """``function`` of both operands once they are alike, or NotImplemented where one is none."""
    left, right = _operand(a), _operand(b)
    if left is None or right is None:
        return NotImplemented
    return Tensor(function(*operands.unify(left, right)))


def _operand(value: Any) -> Ref | Scalar | None:
    return value.ref if isinstance(value, Tensor) else lifted(value)


def _bare(value: Any) -> Any:
    """The graph value of a tensor; what is none stays."""
    return value.ref if isinstance(value, Tensor) else value


# --- memory ---


def from_handle(handle: Any, type: TensorType, target: Target, aliased: bool = False) -> Tensor:
    """A tensor that owns a device handle."""
    return Tensor(source(type, Buffer(handle, type, target, aliased)))


def from_host(array: Any, target: Target | None = None, *, borrow: bool = False) -> Tensor:
    """A tensor with a copy of a NumPy array, whose dtype is an element type, on a device.

    One that is borrowed stays as it is while the tensor lives: where the device reads the host's
    memory nothing is copied, and nobody waits for an upload.
    """
    chosen = target or default_target()
    handle = chosen.backend.upload(array, chosen.device, borrow=borrow)
    type = TensorType(dtype_of(array), tuple(array.shape))
    return from_handle(handle, type, chosen, aliased=borrow)
