"""``Module``: a tree of layers whose attribute names are the checkpoint's keys.

A module only declares parameters. ``bind`` gives a copy of the tree whose parameters are tensors.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

from ptir.ir.location import ROOT, Scope, entered
from ptir.types import F32, TensorType

if TYPE_CHECKING:
    from ptir.capture.tensor import Tensor


@dataclass(frozen=True)
class Declared:
    """A parameter that a layer needs, by type; stored floats of other widths are accepted.

    ``inputs`` is the axis of a weight's inputs where ``linear`` and ``embedding`` alone read it:
    such a weight may be stored in blocks along them. One that is ``multiplied`` with rows, and not
    only looked up, may be quantized while it is loaded. ``filters`` are what windows of an image
    are multiplied with, in all their channels.
    """

    type: TensorType
    inputs: int | None = None
    multiplied: bool = True
    filters: bool = False


def param(
    *shape: int, inputs: int | None = None, multiplied: bool = True, filters: bool = False
) -> Tensor:
    """Declare a parameter of a layer; after ``bind`` the attribute is a tensor of this shape.

    ``inputs`` names the axis of the inputs of a weight that only ``linear`` and ``embedding`` read,
    ``multiplied`` is false for one that only ``embedding`` does; ``filters`` is true for one that
    ``conv2d`` reads over images, not in groups.
    """
    return cast("Tensor", Declared(TensorType(F32, shape), inputs, multiplied, filters))


_outputs: ContextVar[dict[str, Tensor] | None] = ContextVar("ptir_outputs", default=None)


@contextmanager
def recording() -> Iterator[dict[str, Tensor]]:
    """Collect the output of every named layer that is called inside the ``with`` block."""
    outputs: dict[str, Tensor] = {}
    token = _outputs.set(outputs)
    try:
        yield outputs
    finally:
        _outputs.reset(token)


class Module:
    """Base of layers and models. Lists of modules contribute their indices to the names.

    What a call records knows the module as its scope.
    """

    _scope = ROOT

    def __init_subclass__(cls) -> None:
        """Let ``recording``, and what is recorded, know of the calls of every subclass."""
        super().__init_subclass__()
        if "__call__" in vars(cls):
            cls.__call__ = _recorded(cls.__call__)  # type: ignore[method-assign]

    @property
    def name(self) -> str:
        """Where in the tree the module stands, once it is bound: ``h.3.attn``; the root has none.

        Its parameters' checkpoint keys begin so.
        """
        return self._scope.path

    def _members(self) -> Iterator[tuple[str, Any]]:
        for name, value in vars(self).items():
            if isinstance(value, list):
                yield from ((f"{name}.{i}", item) for i, item in enumerate(value))
            else:
                yield name, value

    def _declared(self, prefix: str) -> Iterator[tuple[str, Declared]]:
        """What the layers of the tree declare, by checkpoint key."""
        for name, value in self._members():
            if isinstance(value, Declared):
                yield prefix + name, value
            elif isinstance(value, Module):
                yield from value._declared(f"{prefix}{name}.")

    def parameters(self, prefix: str = "") -> dict[str, TensorType]:
        """The declared parameters of the tree by checkpoint key."""
        return {name: one.type for name, one in self._declared(prefix)}

    def weights(self, prefix: str = "") -> dict[str, int]:
        """The weights that may be quantized, by checkpoint key, with the axis of their inputs."""
        return self._weights(prefix, looked_up=False)

    def block_weights(self) -> dict[str, int]:
        """The weights that may be stored in blocks, which are those and tables of rows."""
        return self._weights("", looked_up=True)

    def _weights(self, prefix: str, *, looked_up: bool) -> dict[str, int]:
        return {
            name: one.inputs
            for name, one in self._declared(prefix)
            if one.inputs is not None and (one.multiplied or looked_up)
        }

    def filters(self) -> tuple[str, ...]:
        """The weights of convolutions of images, not in groups, by checkpoint key."""
        return tuple(name for name, one in self._declared("") if one.filters)

    def bind(self, resolve: Callable[[str], Tensor], scope: Scope = ROOT) -> Self:
        """A copy of the tree with each declared parameter replaced by ``resolve(key)``.

        ``scope`` is that of the copy in its tree.
        """
        bound = copy.copy(self)
        for name, value in vars(self).items():
            setattr(bound, name, _bound(value, resolve, scope.member(name)))
        bound._scope = scope
        return bound


def _recorded(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def recorded(self: Module, *args: Any, **kwargs: Any) -> Any:
        with entered(self._scope):
            result = call(self, *args, **kwargs)
        note(self, result)
        return result

    return recorded


def note(layer: Module, result: Any) -> None:
    """Let ``recording`` see the output of a layer that was computed without calling it."""
    outputs = _outputs.get()
    if outputs is not None and layer.name:
        outputs[layer.name] = result[0] if isinstance(result, tuple) else result


def _bound(value: Any, resolve: Callable[[str], Tensor], scope: Scope) -> Any:
    if isinstance(value, Declared):
        return resolve(scope.path)
    if isinstance(value, Module):
        return value.bind(resolve, scope)
    if isinstance(value, list):
        return [_bound(item, resolve, scope.item(i)) for i, item in enumerate(value)]
    return value
