"""Deduplication: a kernel is written once, and serves every fusion of equal structural key.

The layers of a model differ in nothing but which values they read and write. The structural key of
a fusion is all that its family can look at: the instructions that it computes and those that are
inlined into it, and what the fusion holds, its detail among that. Values and instructions are
numbered in the order in which a search from the fusion's outputs meets them. Fusions of one key
get one kernel; ``PTIR_VERIFY=1`` has it written for each of them and compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, replace
from itertools import zip_longest

from ptir.codegen.families import FAMILIES
from ptir.codegen.fusion.graph import Graph
from ptir.codegen.fusion.renumber import Role, renumbered
from ptir.codegen.planning.fuse import FusionPlan
from ptir.codegen.schedules.kernel import EmitContext, Fusion, Kernel, scratch_value
from ptir.errors import VerifyError
from ptir.switches import switched_on


def write_kernels(plan: FusionPlan, context: EmitContext) -> tuple[Kernel | None, ...]:
    """The kernel of every fusion; None where there is nothing to store."""
    known: dict[Hashable, tuple[Kernel, tuple[int, ...]]] = {}
    kernels: list[Kernel | None] = []
    checked = switched_on("PTIR_VERIFY")
    for fusion in plan.fusions:
        if not any(plan.graph.type(value).size for value in fusion.outputs):
            kernels.append(None)
            continue
        key, values = structural_key(plan, fusion)
        before = known.get(key)
        if before is None:
            made = FAMILIES[fusion.family].kernel(fusion, context)
            known[key] = made, values
            kernels.append(made)
        else:
            kernel, others = before
            reused = _renumbered(kernel, fusion, dict(zip(others, values, strict=True)))
            if checked:
                _check(reused, FAMILIES[fusion.family].kernel(fusion, context))
            kernels.append(reused)
    return tuple(kernels)


def structural_key(plan: FusionPlan, fusion: Fusion) -> tuple[Hashable, tuple[int, ...]]:
    """What is written for a fusion depends on this and the device; and the values that it is of."""
    graph = plan.graph
    inside = fusion.all_instructions
    values, seen = _views_of_structure(plan, fusion, inside)
    place_of = {value: place for place, value in enumerate(values)}

    def number(role: Role, found: int) -> int:
        return place_of[found if role == "value" else graph.results[found][0]]

    def numbers(found: Iterable[int]) -> tuple[int, ...]:
        return tuple(place_of[value] for value in found)

    instructions = []
    for position in seen:
        made = graph.block.instructions[position]
        what = made.op, made.attributes, made.types, made.regions
        operands, results = numbers(made.operands), numbers(graph.results[position])
        instructions.append((*what, operands, results, position in inside))
    key = (
        fusion.family,
        tuple(instructions),
        tuple((graph.type(value), plan.is_stored(value)) for value in values),
        renumbered(fusion, number),
    )
    return key, values


def _views_of_structure(
    plan: FusionPlan, fusion: Fusion, inside: frozenset[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The values and the instructions of the kernel's expressions, in the order of a search."""
    graph = plan.graph
    values, positions = dict[int, None](), dict[int, None]()
    own = (value for position in sorted(inside) for value in graph.results[position])
    held = _values_in(graph, fusion)
    pending = [
        *fusion.outputs,
        *fusion.materialized,
        *fusion.output_aliases.values(),
        *own,
        *fusion.inputs,
        *held,
    ]
    pending.reverse()
    while pending:
        value = pending.pop()
        if value in values:
            continue
        values[value] = None
        maker = graph.maker.get(value)
        if maker is None or (maker not in inside and plan.is_stored(value)):
            continue
        positions[maker] = None
        values.update(dict.fromkeys(graph.results[maker]))
        pending.extend(reversed(graph.block.instructions[maker].operands))
    return tuple(values), tuple(positions)


def _values_in(graph: Graph, fusion: Fusion) -> list[int]:
    """The values that a fusion's detail holds, and those that the instructions in it make."""
    found: list[int] = []

    def record(role: Role, number: int) -> None:
        found.extend((number,) if role == "value" else graph.results[number])

    renumbered(fusion.detail, record, "position")
    return found


def _renumbered(kernel: Kernel, fusion: Fusion, names: Mapping[int, int]) -> Kernel:
    """The kernel for another fusion of its structural key."""
    scratch = range(len(kernel.scratch))
    names = {
        **names,
        **{scratch_value(kernel.fusion, n): scratch_value(fusion, n) for n in scratch},
    }
    values = tuple(names[value] for value in kernel.values)
    over = frozenset(names[value] for value in kernel.may_alias)
    then = _renumbered(kernel.next, fusion, names) if kernel.next else None
    return replace(kernel, values=values, fusion=fusion, may_alias=over, next=then)


def _check(reused: Kernel, anew: Kernel) -> None:
    """Raise ``VerifyError`` where a kernel is not what is written for its own fusion."""
    for one, other in zip_longest(reused.launches, anew.launches):
        if differing := _differing(one, other):
            raise VerifyError(
                f"a {reused.family} kernel was reused for a fusion that it is not written for:"
                f" {differing}; the key of a fusion (`structural_key`) leaves out what its family"
                " looks at: report the program (`ptir dump`)"
            )


def _differing(one: Kernel | None, other: Kernel | None) -> str:
    """What is not the same in two launches, or nothing."""
    if one is None or other is None:
        return "it has another number of launches"
    if one.code != other.code:
        lines = zip_longest(one.code.printed.splitlines(), other.code.printed.splitlines())
        pairs = ((a or "nothing", b or "nothing") for a, b in lines if a != b)
        a, b = next(pairs, ("other lanes", "these"))
        return f"it says `{a.strip()}` instead of `{b.strip()}`"
    for name in (field.name for field in fields(Kernel) if field.name not in ("code", "next")):
        if getattr(one, name) != getattr(other, name):
            return f"its {name} are {getattr(one, name)} instead of {getattr(other, name)}"
    return ""
