"""From graph values to a program with its ports, and from ports back to what feeds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ptir.backend.buffer import Buffer
from ptir.backend.contract import Target
from ptir.capture.plan import Parameter
from ptir.capture.trace import Symbol
from ptir.errors import CaptureError
from ptir.ir.graph import Node, Ref, freeze, reachable
from ptir.ir.program import Port, Program


@dataclass(frozen=True)
class Captured:
    """A program and what its ports stand for.

    Input ports come first: the declared symbols, then the ``closed`` buffers. Parameter ports
    follow; ``parameters`` maps their names.
    """

    program: Program
    closed: tuple[Buffer, ...]
    parameters: dict[str, Parameter]


def build(outputs: Sequence[Ref], symbols: Sequence[Ref], names: Sequence[str]) -> Captured:
    """The program of ``outputs``, from ``symbols`` and whatever concrete sources occur."""
    declared = {ref.node.serial for ref in symbols}
    free = [ref for ref in source_refs(outputs) if ref.node.serial not in declared]
    for ref in free:
        if isinstance(payload_of(ref), Symbol):
            raise CaptureError(
                f"a symbolic tensor {ref.type} of another (perhaps finished) capture is used;"
                " return it from its own function instead of keeping it"
            )
    buffers = [ref for ref in free if isinstance(payload_of(ref), Buffer)]
    stored = [ref for ref in free if isinstance(payload_of(ref), Parameter)]
    taken = set(names)
    ports = [Port(name) for name in names]
    ports += [Port(_unique(f"closed{i}", taken)) for i in range(len(buffers))]
    parameters: dict[str, Parameter] = {}
    for ref in stored:
        parameter: Parameter = payload_of(ref)  # type: ignore[assignment]
        name = _unique(parameter.name, taken)
        parameters[name] = parameter
        ports.append(Port(name, "parameter"))
    block = freeze(outputs, [*symbols, *buffers, *stored])
    closed = tuple(b for b in map(payload_of, buffers) if isinstance(b, Buffer))
    return Captured(Program(block, tuple(ports)), closed, parameters)


def _unique(name: str, taken: set[str]) -> str:
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}#{count}"
    taken.add(candidate)
    return candidate


def payload_of(ref: Ref) -> object:
    """What a source value stands for: a ``Symbol``, ``Buffer`` or ``Parameter``."""
    payload = ref.node.payload
    return payload[ref.index] if isinstance(payload, tuple) else payload


def source_refs(outputs: Sequence[Ref]) -> list[Ref]:
    """The distinct source values that ``outputs`` need, in the order they were made."""
    found: dict[tuple[int, int], Ref] = {}
    for node in reachable(outputs):
        for ref in node.operands:
            if ref.node.is_source:
                found[ref.key] = ref
    for ref in outputs:
        if ref.node.is_source:
            found[ref.key] = ref
    return [found[key] for key in sorted(found)]


def pending_nodes(outputs: Sequence[Ref]) -> list[Node]:
    """The nodes that must still be computed for ``outputs``, in order."""
    return [node for node in reachable(outputs) if not node.is_source]


def target_of(captured: Captured, fallback: Callable[[], Target]) -> Target:
    """Where a captured program runs: where its buffers and parameters are.

    Raises ``CaptureError`` when they are on different devices.
    """
    targets = {str(b.target): b.target for b in captured.closed}
    targets |= {str(p.store.target): p.store.target for p in captured.parameters.values()}
    if len(targets) > 1:
        raise CaptureError(
            f"tensors on {' and '.join(sorted(targets))} meet in one program; move one with"
            " ptir.tensor(x.numpy(), backend=...)"
        )
    return next(iter(targets.values())) if targets else fallback()
