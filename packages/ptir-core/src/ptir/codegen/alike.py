"""Groups that are alike: a kernel is written once, and serves every group of the same form.

The layers of a model differ in nothing but which values they read and write. The form of a group is
all that its family looks at: the instructions that it computes and those that are inlined into it,
with values numbered as a walk from its results meets them. Groups of one form get one text.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

from ptir.codegen.families import FAMILIES
from ptir.codegen.fuse import Fused
from ptir.codegen.kernel import Group, Kernel, Site, scratch_value


def written(fused: Fused, site: Site) -> tuple[Kernel | None, ...]:
    """The kernel of every group; None where there is nothing to store."""
    known: dict[Hashable, tuple[Kernel, tuple[int, ...]]] = {}
    kernels: list[Kernel | None] = []
    for group in fused.groups:
        if not any(fused.graph.type(value).size for value in group.exits):
            kernels.append(None)
            continue
        form, values = form_of(fused, group)
        if form not in known:
            known[form] = FAMILIES[group.family].kernel(group, site), values
            kernels.append(known[form][0])
        else:
            kernel, others = known[form]
            names = dict(zip(others, values, strict=True))
            kernels.append(_renamed(kernel, group, names))
    return tuple(kernels)


def form_of(fused: Fused, group: Group) -> tuple[Hashable, tuple[int, ...]]:
    """What is written for a group depends on this and the device; and the values that it is of."""
    graph = fused.graph
    inside = _inside(group)
    values, seen = _seen(fused, group, inside)
    number = {value: place for place, value in enumerate(values)}

    def numbers(found: Iterable[int]) -> tuple[int, ...]:
        return tuple(number[value] for value in found)

    instructions = []
    for position in seen:
        made = graph.block.instructions[position]
        what = made.op, made.attributes, made.types, made.regions
        operands, results = numbers(made.operands), numbers(graph.results[position])
        instructions.append((*what, operands, results, position in inside))
    form = (
        group.family,
        tuple(instructions),
        tuple((graph.type(value), fused.is_stored(value)) for value in values),
        numbers(group.exits),
        frozenset(numbers(group.reads)),
        numbers(group.exact),
        frozenset((number[one], number[other]) for one, other in group.shares.items()),
    )
    return form, values


def _inside(group: Group) -> frozenset[int]:
    """The instructions that the kernel computes as its own, those of a row program in front too."""
    prologue: Group | None = getattr(group.detail, "prologue", None)
    return group.members | (prologue.members if prologue is not None else frozenset())


def _seen(
    fused: Fused, group: Group, inside: frozenset[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The values and the instructions of the kernel's expressions, in the order of a walk."""
    graph = fused.graph
    values, positions = dict[int, None](), dict[int, None]()
    own = (value for position in sorted(inside) for value in graph.results[position])
    pending = [*group.exits, *group.exact, *group.shares.values(), *own, *group.reads]
    pending.reverse()
    while pending:
        value = pending.pop()
        if value in values:
            continue
        values[value] = None
        maker = graph.maker.get(value)
        if maker is None or (maker not in inside and fused.is_stored(value)):
            continue
        positions[maker] = None
        values.update(dict.fromkeys(graph.results[maker]))
        pending.extend(reversed(graph.block.instructions[maker].operands))
    return tuple(values), tuple(positions)


def _renamed(kernel: Kernel, group: Group, names: Mapping[int, int]) -> Kernel:
    """The kernel for another group of its form."""
    scratch = range(len(kernel.scratch))
    names = {
        **names,
        **{scratch_value(kernel.group, n): scratch_value(group, n) for n in scratch},
    }
    values = tuple(names[value] for value in kernel.values)
    over = frozenset(names[value] for value in kernel.over)
    then = _renamed(kernel.then, group, names) if kernel.then else None
    return replace(kernel, values=values, group=group, over=over, then=then)
