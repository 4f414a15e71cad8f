"""Values of a graph that depend on constants alone, computed where that is small."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ptir.ir.graph import Node, Ref
from ptir.ops.record import op

ELEMENTS: Final = 1 << 18
"""Elements up to which a value is computed."""


@dataclass
class Known:
    """The arrays of values that depend on constants alone, bools and floats; None for others."""

    _constant: dict[int, bool] = field(default_factory=dict[int, bool])
    _arrays: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])

    def of(self, value: Ref) -> Any:
        """The elements of a value, or None where something else is needed for them."""
        kind = value.type.dtype.kind
        if kind not in ("bool", "float") or value.type.size > ELEMENTS:
            return None
        return self._array(value) if self._is_constant(value.node) else None

    def _is_constant(self, node: Node) -> bool:
        pending = [node]
        while pending:
            one = pending[-1]
            if one.serial in self._constant:
                pending.pop()
                continue
            if one.is_source or one.regions or one.op == "custom_call" or len(one.types) > 1:
                self._constant[one.serial] = False
                continue
            if any(t.size > ELEMENTS for t in one.types):
                self._constant[one.serial] = False
                continue
            below = [r.node for r in one.operands]
            missing = [n for n in below if n.serial not in self._constant]
            if missing and not any(self._constant.get(n.serial) is False for n in below):
                pending.append(missing[0])
                continue
            self._constant[one.serial] = all(self._constant.get(n.serial, False) for n in below)
        return self._constant[node.serial]

    def _array(self, value: Ref) -> Any:
        from ptir.ops import numerics

        found = self._arrays.get(value.key)
        if found is None:
            node = value.node
            operands = [self._array(operand) for operand in node.operands]
            found = op(node.op).reference(numerics, *operands, **node.attributes)
            self._arrays[value.key] = found
        return found
