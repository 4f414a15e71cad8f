"""Lifts what depends on parameters alone out of the program: such values become derived parameters.

That never grows memory: a derived value is at most as large as the parameters that go away for
it. Up-casts therefore stay, unless the backend wants them done once; so do views of a parameter,
which cost nothing where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ptir.backend.contract import Derivation, derived_name
from ptir.ir.graph import Node, Ref, freeze, inline, source
from ptir.ir.program import Port, Program
from ptir.ops.record import op
from ptir.passes.context import PassContext


def lift_params(program: Program, context: PassContext) -> Program:
    """``program`` with parameter-only values as new ports ``derived:<digest>``.

    How each is computed goes to ``context.derived``; it may use ports derived before.
    """
    inputs = [source(t) for t in program.main.inputs]
    for value, port in zip(inputs, program.ports, strict=True):
        value.node.payload = port
    outputs = inline(program.main, inputs)
    plan = _Plan(outputs, context.backend.lifts_casts)
    chosen = {value.key: value for value in plan.chosen()}
    derived = {key: _derive(value, inputs, context) for key, value in chosen.items()}
    return _replaced(program, inputs, outputs, chosen, derived)


def _derive(value: Ref, inputs: Sequence[Ref], context: PassContext) -> Port:
    """The port of a derived value; its derivation is noted in the context."""
    leaves = {node.serial for node in _below([value]) if node.is_source}
    used = [ref for ref in inputs if ref.node.serial in leaves]
    ports: tuple[Port, ...] = tuple(ref.node.payload for ref in used)
    derivation = Derivation(freeze([value], used), ports)
    name = derived_name(derivation)
    context.derived[name] = derivation
    return Port(name, "parameter")


def _replaced(
    program: Program,
    inputs: Sequence[Ref],
    outputs: Sequence[Ref],
    chosen: dict[tuple[int, int], Ref],
    derived: dict[tuple[int, int], Port],
) -> Program:
    """``program`` reading derived ports, added behind its own, in place of the chosen values."""
    ports = list(program.ports)
    sources = list(inputs)
    by_name = {port.name: value for port, value in zip(ports, sources, strict=True)}
    values: dict[tuple[int, int], Ref] = {}
    for key, port in derived.items():
        if port.name not in by_name:
            by_name[port.name] = source(chosen[key].type)
            ports.append(port)
            sources.append(by_name[port.name])
        values[key] = by_name[port.name]
    replaced = _substituted(outputs, values)
    return Program(freeze(replaced, sources), tuple(ports), program.version)


def _substituted(outputs: Sequence[Ref], values: dict[tuple[int, int], Ref]) -> list[Ref]:
    """``outputs`` computed from ``values`` wherever one of those stands for a value."""
    made: dict[int, Node] = {}
    for node in _below(outputs, set(values)):
        made[node.serial] = node if node.is_source else _copied(node, made, values)
    return [_lookup(ref, made, values) for ref in outputs]


def _copied(node: Node, made: dict[int, Node], values: dict[tuple[int, int], Ref]) -> Node:
    operands = tuple(_lookup(ref, made, values) for ref in node.operands)
    return Node(node.op, operands, node.attributes, node.types, node.regions, node.location)


def _lookup(ref: Ref, made: dict[int, Node], values: dict[tuple[int, int], Ref]) -> Ref:
    found = values.get(ref.key)
    return Ref(made[ref.node.serial], ref.index) if found is None else found


def _below(values: Sequence[Ref], cut: set[tuple[int, int]] | None = None) -> list[Node]:
    """Nodes that ``values`` need, in the order they were made, not looking behind ``cut``."""
    seen: dict[int, Node] = {}
    pending = [ref for ref in values if ref.key not in (cut or ())]
    while pending:
        node = pending.pop().node
        if node.serial not in seen:
            seen[node.serial] = node
            pending.extend(ref for ref in node.operands if ref.key not in (cut or ()))
    return [seen[serial] for serial in sorted(seen)]


class _Plan:
    """Which values of a graph are worth deriving."""

    def __init__(self, outputs: Sequence[Ref], lifts_casts: bool) -> None:
        self._outputs = outputs
        self._lifts_casts = lifts_casts
        self._liftable = {
            node.serial: node for node in _liftable_nodes(_below(outputs)) if not node.is_source
        }
        self._banned: set[tuple[int, int]] = set()

    def chosen(self) -> list[Ref]:
        """The values to derive: maximal ones, as many as do not grow memory."""
        while True:
            values = self._maximal()
            too_large = {value.key for value in self._growing(values)}
            if not too_large:
                return values
            self._banned |= too_large

    def _maximal(self) -> list[Ref]:
        """Candidates that nothing else liftable and not banned reads instead."""
        found: dict[tuple[int, int], Ref] = {}
        seen: set[int] = set()
        pending = list(self._outputs)
        while pending:
            ref = pending.pop()
            if self._is_candidate(ref):
                found[ref.key] = ref
            elif ref.node.serial not in seen:
                seen.add(ref.node.serial)
                pending.extend(ref.node.operands)
        return [found[key] for key in sorted(found)]

    def _is_candidate(self, ref: Ref) -> bool:
        if ref.node.serial not in self._liftable or ref.key in self._banned:
            return False
        # what is reshaped is derived: backends know weights, and pack them, by their shapes
        seen_as = ref.node.op == "reshape" or self._is_view(ref)
        return bool(self._leaves(ref)) and not seen_as

    def _is_view(self, ref: Ref) -> bool:
        """Whether ``ref`` is a parameter seen through nothing but views."""
        node = ref.node
        while not node.is_source and "view" in op(node.op).traits:
            node = node.operands[0].node
        return node.is_source

    def _leaves(self, ref: Ref) -> list[Ref]:
        """What ``ref`` is computed from: parameters, or their casts where those count as such."""
        leaves: dict[tuple[int, int], Ref] = {}
        pending, seen = [ref], set()
        while pending:
            value = pending.pop()
            if value.node.is_source or self._is_counted_cast(value):
                leaves[value.key] = value
            elif value.node.serial not in seen:
                seen.add(value.node.serial)
                pending.extend(value.node.operands)
        return list(leaves.values())

    def _is_counted_cast(self, ref: Ref) -> bool:
        is_cast = ref.node.op == "cast" and ref.node.operands[0].node.is_source
        return self._lifts_casts and is_cast

    def _growing(self, values: Sequence[Ref]) -> Iterator[Ref]:
        """The largest value of each group that is larger than the parameters it replaces."""
        cut = {value.key for value in values}
        kept = {node.serial for node in _below(self._outputs, cut) if node.is_source}
        for group in _groups([(value, self._leaves(value)) for value in values]):
            leaves = {leaf.key: leaf for _, found in group for leaf in found}
            replaced = [v for v in leaves.values() if v.node.serial not in kept]
            derived = [value for value, _ in group]
            if _bytes(derived) > _bytes(replaced):
                yield max(derived, key=lambda value: (value.type.nbytes, value.key))


def _bytes(values: Sequence[Ref]) -> int:
    return sum(value.type.nbytes for value in values)


def _liftable_nodes(nodes: Sequence[Node]) -> Iterator[Node]:
    """Nodes, in order, whose values depend on parameters and constants alone."""
    known: set[int] = set()
    for node in nodes:
        if node.is_source:
            depends_on_parameters = node.payload.kind == "parameter"
        else:
            pure = node.op != "custom_call" and not node.regions
            depends_on_parameters = pure and all(r.node.serial in known for r in node.operands)
        if depends_on_parameters:
            known.add(node.serial)
            yield node


def _groups(values: Sequence[tuple[Ref, list[Ref]]]) -> list[list[tuple[Ref, list[Ref]]]]:
    """Values that share parameters, directly or through others, together."""
    groups: list[tuple[set[int], list[tuple[Ref, list[Ref]]]]] = []
    for value, leaves in values:
        touched = {leaf.node.serial for leaf in leaves}
        members = [(value, leaves)]
        apart = []
        for others, group in groups:
            if others & touched:
                touched, members = touched | others, group + members
            else:
                apart.append((others, group))
        groups = [*apart, (touched, members)]
    return [members for _, members in groups]
