"""What is computed once from parameters alone, before the first step: ``ptir explain --folded``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ptir.cli import show
from ptir.cli.passes import context_for
from ptir.units import size

if TYPE_CHECKING:
    from ptir.backend.contract import Derivation
    from ptir.runtime import Model
    from ptir.runtime.explain import Step


def folded(model: Model, step: Step) -> list[dict[str, Any]]:
    """A record for each derived parameter of a step: its id, bytes, and what it is made of."""
    from ptir.passes.pipeline import optimize

    with model.policies():
        program = step.captured().program
        context = context_for(model.target)
        after = optimize(program, context)
    types = dict(zip((port.name for port in after.ports), after.inputs, strict=True))
    return [
        _record(name, derivation, context.derived)
        for name, derivation in context.derived.items()
        if name in types
    ]


def _record(name: str, derivation: Derivation, derived: dict[str, Derivation]) -> dict[str, Any]:
    """One derived parameter. Others that it is made of are resolved to what is stored."""
    (type,) = derivation.block.output_types
    return {
        "id": name,
        "type": str(type),
        "bytes": type.nbytes,
        "computed": [i.name for i in _instructions(derivation, derived)],
        "of": sorted(set(_stored(derivation, derived))),
    }


def _instructions(derivation: Derivation, derived: dict[str, Derivation]) -> list[Any]:
    inner = [
        one
        for port in derivation.ports
        if port.name in derived
        for one in _instructions(derived[port.name], derived)
    ]
    return [*inner, *derivation.block.instructions]


def _stored(derivation: Derivation, derived: dict[str, Derivation]) -> list[str]:
    names: list[str] = []
    for port in derivation.ports:
        known = derived.get(port.name)
        names += [port.name] if known is None else _stored(known, derived)
    return names


def print_folded(records: list[dict[str, Any]]) -> None:
    """The records as a table, with the bytes of all at the end."""
    rows = [
        (one["id"], one["type"], size(one["bytes"]), _ops(one["computed"]), _names(one["of"]))
        for one in records
    ]
    show.table(("derived parameter", "type", "bytes", "computed by", "of"), rows)
    total = size(sum(one["bytes"] for one in records))
    show.text(f"{len(records)} values are computed once, {total}")


def _ops(names: list[str]) -> str:
    counts = Counter(names)
    return ", ".join(f"{n} × {name}" if n > 1 else name for name, n in counts.items())


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
