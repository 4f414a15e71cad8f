"""Settles which implementation every composite uses: forced, timed, the backend's own, preferred.

A composite that the backend takes keeps its lowering and gets ``implementation = "backend"``; any
other gets the chosen lowering in place of its own, and the chosen name. One that has a functional's
name and another lowering than the functional gives is only what its lowering says: a program that
was read may hold such, and means the same on every backend.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ptir import events
from ptir.backend.contract import OpQuery
from ptir.backend.entries import cause
from ptir.errors import PluginError, PtirError, UnsupportedError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import Ref, rebuild, repeat
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops.implementations import (
    BACKEND,
    FUNCTIONALS,
    OWN,
    PORTABLE,
    Lower,
    functional,
    known_lowerings,
)
from ptir.ops.policies import FOLLOWING, Call, Override, Policy, fitting
from ptir.ops.record import op
from ptir.ops.verify import WRONG_KIND
from ptir.passes.context import PassContext
from ptir.rewrite.engine import descend
from ptir.types import TensorType


def select(program: Program, context: PassContext) -> Program:
    """``program`` with an implementation for each composite, inside chosen lowerings too.

    Raises ``UnsupportedError`` where a forced implementation does not apply.
    """
    stored = stored_values(program) if context.overrides else frozenset[int]()
    selection = _Selection(context, stored)
    return replace(program, main=selection.main(program.main))


def stored_values(program: Program) -> frozenset[int]:
    """The values of the main block that parameters alone decide: those a model has in memory."""
    ports = enumerate(program.ports)
    found = {number for number, port in ports if port.kind == "parameter"}
    for results, instruction in program.main.numbered():
        if instruction.operands and found.issuperset(instruction.operands):
            found |= {*results}
    return frozenset(found)


@dataclass(frozen=True)
class _Call:
    """One composite application: what a choice may depend on."""

    query: OpQuery
    lowering: Block
    stored: tuple[bool, ...]
    """Which operands come from parameters alone."""

    @property
    def types(self) -> tuple[TensorType, ...]:
        return self.query.operands

    @property
    def attributes(self) -> Attributes:
        """The functional's own attributes, without its name."""
        return _without(self.query.attributes, "name")

    def __str__(self) -> str:
        return f"{self.query.name}({', '.join(map(str, self.types))})"


def _without(attributes: Attributes, *names: str) -> Attributes:
    return Attributes({k: v for k, v in attributes.items() if k not in names})


class _Selection:
    """Chooses for one program; equal calls are settled once."""

    def __init__(self, context: PassContext, stored: frozenset[int]) -> None:
        self._context = context
        self._stored = stored
        self._overrides: dict[str, list[Override]] = {}
        for one in context.overrides:
            self._overrides.setdefault(one.functional, []).append(one)
        self._settled: dict[_Call, tuple[str, Block]] = {}

    def main(self, block: Block) -> Block:
        """The block whose inputs are the program's ports."""
        stored = self._stored
        if not stored:
            return self.block(block)

        def visit(instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref]:
            which = tuple(value in stored for value in instruction.operands)
            return self._visit(instruction, operands, which)

        return rebuild(block, visit)

    def block(self, block: Block) -> Block:
        return rebuild(block, self._visit)

    def _visit(
        self, instruction: Instruction, operands: tuple[Ref, ...], stored: tuple[bool, ...] = ()
    ) -> Sequence[Ref]:
        if instruction.op != "composite":
            return repeat(descend(instruction, self.block), operands)
        attributes = _without(instruction.attributes, "implementation")
        types = tuple(operand.type for operand in operands)
        query = OpQuery("composite", attributes, types, instruction.types)
        chosen, lowering = self._settle(
            _Call(query, instruction.regions[0], stored or (False,) * len(operands))
        )
        named = Attributes({**attributes, "implementation": chosen})
        where = instruction.location.inside(instruction.name, chosen)
        settled = replace(instruction, attributes=named, regions=(lowering,), location=where)
        return repeat(settled, operands)

    def _settle(self, call: _Call) -> tuple[str, Block]:
        if call not in self._settled:
            chosen, reason = self._choose(call)
            events.emit(events.ImplementationChosen(call.query.name, chosen, reason))
            self._settled[call] = (chosen, self._lowering(call, chosen))
        return self._settled[call]

    def _lowering(self, call: _Call, chosen: str) -> Block:
        if chosen == BACKEND:
            return call.lowering
        return self.block(call.lowering if chosen == OWN else _lowered(call, chosen))

    def _choose(self, call: _Call) -> tuple[str, str]:
        if not _is_functional(call):
            return OWN, f"its lowering is not that of {call.query.name} on these operands"
        return self._decided(call, self._asked(call))

    def _decided(self, call: _Call, asked: Sequence[Override]) -> tuple[str, str]:
        """What is chosen, and why, where so much is asked for, the strongest first."""
        if not asked:
            return self._default(call)
        override, *weaker = asked
        policy, by = override.policy, f"{override}, {override.origin.text}"
        refused: str | None = None
        match policy.kind:
            case "force":
                return self._forced(call, policy.implementation), by
            case "benchmark":
                return self._timed(call, policy, self._compared(call, weaker)), by
            case "tuned":
                known = self._known(call, weaker)
                return (known, by) if known else self._decided(call, weaker)
            case "prefer":
                refused = self._unpreferred(call, policy.implementation)
                if refused is None:
                    return policy.implementation, by
            case "default":
                pass
        chosen, reason = self._default(call)
        return chosen, ": ".join(filter(None, (by, refused, reason)))

    def _compared(self, call: _Call, weaker: Sequence[Override]) -> str:
        """What the others are compared with: what is preferred, else the default."""
        plain = [one for one in weaker if one.policy.kind not in FOLLOWING]
        preferred = plain[:1] if plain and plain[0].policy.kind == "prefer" else []
        return self._decided(call, preferred)[0]

    def _asked(self, call: _Call) -> list[Override]:
        """What is asked for the call, the strongest first."""
        asked = self._overrides.get(call.query.name)
        if asked is None:
            return []
        where = self._context.backend.name, self._context.device.index
        found = functional(call.query.name)
        return fitting(asked, Call.of(found, call.types, call.attributes, *where))

    def _default(self, call: _Call) -> tuple[str, str]:
        reason = self._refusal(call)
        if reason is None:
            return BACKEND, f"{self._context.backend.name} takes it"
        if call.query.name not in FUNCTIONALS:
            return OWN, reason
        try:
            chosen, why = FUNCTIONALS[call.query.name].default(call.types, call.attributes)
        except Exception as error:  # noqa: BLE001  nobody chose it: it may not end what others do
            said = f"{call}: what an implementation is preferred for failed: {cause(error)}"
            warnings.warn(f"{said}; the portable one is taken", RuntimeWarning, stacklevel=2)
            return PORTABLE, reason
        return chosen, f"{why}; {reason}" if why else reason

    def _refusal(self, call: _Call) -> str | None:
        if self._context.check_indices and _has_indices(call.lowering):
            return "its indices are to be checked (PTIR_CHECK_INDICES=1)"
        return self._context.backend.refusal(call.query, self._context.device)

    def _forced(self, call: _Call, name: str) -> str:
        reason = self._refusal(call) if name == BACKEND else _unsupported(call, name)
        if reason is None:
            return name
        where = f"{self._context.backend.name} on device {self._context.device.name!r}"
        raise UnsupportedError(
            f"{call}: force={name} on {where}: {reason};"
            f" choose another implementation of {call.query.name} or drop the override"
        )

    def _unpreferred(self, call: _Call, name: str) -> str | None:
        """Why an implementation is not taken that is preferred where it is a kernel; else None."""
        if name == BACKEND:
            return self._refusal(call)
        unsupported = _unsupported(call, name)
        if unsupported is not None:
            return unsupported
        from ptir.backend.interpreter import query_of

        lowering = _lowered(call, name)
        made_of = (query_of(lowering, one) for one in lowering.instructions)
        refusals = (
            self._context.backend.refusal(one, self._context.device)
            for one in made_of
            if one.is_composite
        )
        return next(filter(None, refusals), None)

    def _names(self, call: _Call) -> list[str]:
        """What may be chosen by time: all that applies and is as accurate as the portable one."""
        known = functional(call.query.name).implementations.values()
        names = [one.name for one in known if one.accuracy != "narrower"]
        applying = [name for name in names if _unsupported(call, name) is None]
        return [*applying, BACKEND] if self._refusal(call) is None else applying

    def _known(self, call: _Call, weaker: Sequence[Override]) -> str | None:
        from ptir.passes.benchmark import TimedCall, known_choice

        timed = TimedCall(call.query, call.stored)
        default = self._compared(call, weaker)
        return known_choice(timed, self._names(call), default, self._context)

    def _timed(self, call: _Call, policy: Policy, default: str) -> str:
        from ptir.passes.benchmark import TimedCall, fastest

        names = self._names(call)
        candidates = {name: partial(self._program, call, name) for name in names}
        if len(names) == 1 and names == [default]:
            return default
        timed = TimedCall(call.query, call.stored)
        return fastest(timed, candidates, default, self._context, policy.cache)

    def _program(self, call: _Call, chosen: str) -> Program:
        """The call alone as a program, its implementation chosen; parameters are its parameters."""
        attributes = Attributes({**call.query.attributes, "implementation": chosen})
        results = call.query.results
        operands = tuple(range(len(call.types)))
        lowering = self._lowering(call, chosen)
        # Ports of inputs come first, as in every program.
        order = sorted(operands, key=lambda number: call.stored[number])
        place = {number: at for at, number in enumerate(order)}
        given = tuple(place[number] for number in operands)
        instruction = Instruction("composite", given, attributes, results, (lowering,))
        outputs = tuple(range(len(operands), len(operands) + len(results)))
        types = tuple(call.types[number] for number in order)
        ports = tuple(
            Port(f"operand{n}", "parameter" if call.stored[n] else "input") for n in order
        )
        return Program(Block(types, (instruction,), outputs), ports)


@functools.lru_cache(maxsize=1024)
def _has_indices(block: Block) -> bool:
    """Whether anything below reads places from an operand."""
    return any(
        op(i.op).bounds is not None or any(map(_has_indices, i.regions)) for i in block.instructions
    )


def _is_functional(call: _Call) -> bool:
    """Whether the call is what its name says; names that no table has are left to backends."""
    known = known_lowerings(call.query.name)
    return not known or any(_lowers_to(lower, call) for lower in known)


def _lowers_to(lower: Lower, call: _Call) -> bool:
    """Whether this is how the call was lowered; not where it takes no such operands."""
    try:
        return _alike(lower(call.types, call.attributes), call.lowering)
    except (PtirError, *WRONG_KIND):  # these operands or attributes are none that it takes
        return False
    except Exception as error:  # noqa: BLE001  nobody chose it: it may not end what others do
        name = f"{lower.__module__}.{getattr(lower, '__qualname__', lower)}"
        said = f"{call}: the lowering {name} failed: {cause(error)}; it is passed over, correct it"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
        return False


def _alike(one: Block, other: Block) -> bool:
    """Whether blocks are equal but for what composites in them are lowered to.

    Those are judged by themselves, and may have been settled already.
    """
    if one is other:
        return True
    shells = [(b.inputs, b.outputs, len(b.instructions)) for b in (one, other)]
    pairs = zip(one.instructions, other.instructions, strict=False)
    return shells[0] == shells[1] and all(map(_same_call, pairs))


def _same_call(pair: tuple[Instruction, Instruction]) -> bool:
    one, other = pair
    calls = [(i.op, i.operands, _without(i.attributes, "implementation"), i.types) for i in pair]
    if calls[0] != calls[1] or len(one.regions) != len(other.regions):
        return False
    regions = zip(one.regions, other.regions, strict=True)
    return one.op == "composite" or all(_alike(a, b) for a, b in regions)


def _unsupported(call: _Call, name: str) -> str | None:
    known = functional(call.query.name).implementations
    if name not in known:
        return f"there is no implementation {name!r}; known: {', '.join(sorted(known))}"
    return known[name].supports(call.types, call.attributes)


def _lowered(call: _Call, name: str) -> Block:
    """The lowering that an implementation gives, checked against what the composite promises.

    Raises ``PluginError`` for another, and for what its function raises that is no error of ptir.
    """
    implementation = functional(call.query.name).implementations[name]
    try:
        lowering = implementation.lower(call.types, call.attributes)
    except PtirError:
        raise
    except Exception as error:
        raise PluginError(f"{call}: implementation {name!r} failed: {cause(error)}") from error
    found = (lowering.inputs, lowering.output_types)
    if found != (call.types, call.query.results):
        raise PluginError(
            f"{call}: implementation {name!r} lowers to {_listed(found[0])} -> {_listed(found[1])},"
            f" not to -> {_listed(call.query.results)}; correct its lower function"
        )
    return lowering


def _listed(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"
