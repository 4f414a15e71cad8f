"""Calls derived from an op's samples: other dtypes, attribute branches and axis sizes.

Nothing here knows an op. A variant is proposed and the op's own type rule says whether it is a
call; what the rule refuses is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from ptir.errors import PtirError
from ptir.ir.attributes import Attributes
from ptir.ir.attributes import Literal as Constant
from ptir.ir.program import Block, Instruction
from ptir.ops import OPS
from ptir.ops.record import Op
from ptir.types import DTYPES, DType, TensorType
from ptir_testsuite.corpus.values import Draws, draw
from ptir_testsuite.oracles.floats import Array

LARGEST: Final = 3000  # elements of a grown operand or result
WIDEST: Final = 20  # combinations of operand dtypes up to which all of them are tried

_REFUSED: Final = (PtirError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Template:
    """A call without values: operand types, attributes and regions; ``sample`` is where it began.

    ``kept`` holds the sample's own arrays of operands that must not change: what steers regions.
    """

    op: str
    types: tuple[TensorType, ...]
    attributes: Attributes
    regions: tuple[Block, ...] = ()
    origin: str = ""
    kept: tuple[Array | None, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two templates the same call."""
        return self.types, self.attributes, self.regions

    @cached_property
    def results(self) -> tuple[TensorType, ...] | None:
        """The result types, or None where the op refuses the call."""
        try:
            OPS[self.op].bind(self.attributes)
            return OPS[self.op].infer(self.types, self.attributes, self.regions)
        except _REFUSED:
            return None

    @property
    def fits(self) -> bool:
        """Whether the op takes the call and nothing in it is too large to be judged."""
        found = self.results
        return found is not None and all(t.size <= LARGEST for t in (*self.types, *found))


def unique(templates: Sequence[Template]) -> list[Template]:
    """The templates that the op takes, each call once."""
    found: dict[tuple[Any, ...], Template] = {}
    for template in templates:
        if template.key not in found and template.fits:
            found[template.key] = template
    return list(found.values())


def from_samples(op: Op) -> list[Template]:
    """The distinct calls among an op's samples."""
    return unique([sample_template(op, number) for number in range(len(op.samples))])


def sample_template(op: Op, number: int) -> Template:
    """The call of one sample."""
    sample = op.samples[number]
    arrays = [a.numpy() for a in sample.operands]
    steers = bool(sample.regions)
    kept = tuple(a if steers and a.dtype.kind in "biu" else None for a in arrays)
    types = tuple(a.type for a in sample.operands)
    attributes = Attributes(op.bind(sample.attributes))
    return Template(op.name, types, attributes, sample.regions, f"sample {number}", kept)


def branches(op: Op, templates: Sequence[Template]) -> list[Template]:
    """The templates with every choice of their attributes, and both values of their switches."""
    grown = list(templates)
    for template in templates:
        switches: dict[str, tuple[Any, ...]] = {
            a.name: a.choices for a in op.attributes if a.choices
        }
        switches |= {
            name: (False, True) for name, v in template.attributes.items() if isinstance(v, bool)
        }
        for values in itertools.product(*switches.values()):
            changed = dict(template.attributes) | dict(zip(switches, values, strict=True))
            grown.append(replace(template, attributes=Attributes(changed)))
    return unique(grown)


# --- dtypes ---


def dtype_variants(op: Op, template: Template) -> list[Template]:
    """The template in every dtype that its operands, dtype attributes and literals can have.

    Operands of one dtype change together. All combinations where an attribute is a dtype (every
    cast there is) or they are few, else one dtype at a time.
    """
    slots = {**_operand_slots(op, template), **_attribute_slots(template)}
    if not slots:
        return [template]
    size = 1
    for _, options in slots.values():
        size *= len(options)
    mine = [own for own, _ in slots.values()]
    combinations: Iterable[tuple[DType, ...]]
    named = any(kind == "attribute" for kind, _ in slots)
    if named or size <= WIDEST:
        combinations = itertools.product(*(options for _, options in slots.values()))
    else:
        combinations = _one_at_a_time(mine, [options for _, options in slots.values()])
    keys = list(slots)
    return unique([_substituted(template, dict(zip(keys, c, strict=True))) for c in combinations])


def _one_at_a_time(mine: list[DType], options: list[list[DType]]) -> Iterator[tuple[DType, ...]]:
    for place, allowed in enumerate(options):
        for dtype in allowed:
            yield (*mine[:place], dtype, *mine[place + 1 :])


Slots = dict[tuple[str, str], tuple[DType, list[DType]]]


def _operand_slots(op: Op, template: Template) -> Slots:
    allowed: dict[DType, set[DType]] = {}
    for place, type in enumerate(template.types):
        name = op.operands[min(place, len(op.operands) - 1)]
        members = set(op.dtypes[name])
        allowed[type.dtype] = allowed.get(type.dtype, members) & members
    ordered = {own: [d for d in DTYPES.values() if d in found] for own, found in allowed.items()}
    return {("operand", own.name): (own, options) for own, options in ordered.items()}


def _attribute_slots(template: Template) -> Slots:
    everything = list(DTYPES.values())
    found: Slots = {}
    for name, value in template.attributes.items():
        if isinstance(value, DType):
            found["attribute", name] = (value, everything)
        elif isinstance(value, Constant):
            found["literal", name] = (value.type.dtype, everything)
    return found


def _substituted(template: Template, chosen: Mapping[tuple[str, str], DType]) -> Template:
    into = {own: dtype for (kind, own), dtype in chosen.items() if kind == "operand"}
    changed: dict[str, Any] = {
        name: dtype for (kind, name), dtype in chosen.items() if kind == "attribute"
    }
    changed |= {
        name: redrawn(template.attributes[name].type.with_dtype(dtype), template.origin)
        for (kind, name), dtype in chosen.items()
        if kind == "literal" and dtype != template.attributes[name].type.dtype
    }
    try:
        regions = tuple(_region_in(block, into) for block in template.regions)
    except _REFUSED:
        regions = ()  # of the wrong number: the type rule drops the variant
    return replace(
        template,
        types=tuple(t.with_dtype(into.get(t.dtype.name, t.dtype)) for t in template.types),
        attributes=Attributes(dict(template.attributes) | changed),
        regions=regions,
        kept=_kept_in(template, into),
    )


def _kept_in(template: Template, into: Mapping[str, DType]) -> tuple[Array | None, ...]:
    pairs = zip(template.kept, template.types, strict=False)
    return tuple(
        None if a is None else a.astype(into.get(t.dtype.name, t.dtype).numpy) for a, t in pairs
    )


def redrawn(type: TensorType, origin: str) -> Constant:
    """A literal of ``type`` with awkward elements."""
    return Constant.of(draw(type, "awkward", Draws("literal", type, origin)))


def _region_in(block: Block, into: Mapping[str, DType]) -> Block:
    """A region with its parameters in other dtypes and every instruction typed anew."""
    inputs = tuple(t.with_dtype(into.get(t.dtype.name, t.dtype)) for t in block.inputs)
    if inputs == block.inputs:
        return block
    types, instructions = list(inputs), []
    for instruction in block.instructions:
        operands = [types[v] for v in instruction.operands]
        found = OPS[instruction.op].infer(operands, instruction.attributes, instruction.regions)
        instructions.append(_typed(instruction, found))
        types += found
    return Block(inputs, tuple(instructions), block.outputs)


def _typed(instruction: Instruction, types: tuple[TensorType, ...]) -> Instruction:
    return replace(instruction, types=types)


# --- axis sizes ---

Resize = Callable[[int], int]

SIZES: Final[dict[str, Resize]] = {
    "x17": lambda n: 17 * n,
    "x3": lambda n: 3 * n,
    "x600": lambda n: 600 * n,
    "empty": lambda n: 0,
    "ones": lambda n: min(n, 1),
    "square": lambda n: 4,
}
"""How axis sizes change; the same change goes into attributes, which may hold sizes too."""

MOST: Final = 4  # variants of one change of sizes


def size_variants(template: Template, change: str) -> list[Template]:
    """The template with changed axis sizes in as many operands and attributes as the op takes.

    Which attributes hold sizes is found by trying: every choice of operands and of attributes that
    are tuples of integers, those that change most first. A change that fits nowhere is tried on
    each axis number of all operands alone.
    """
    if template.regions:
        return []
    found = unique(list(_resized(template, SIZES[change], None)))[:MOST]
    ranks = max((t.rank for t in template.types), default=0)
    for axis in range(ranks if ranks > 1 else 0):
        found += unique(list(_resized(template, SIZES[change], axis)))[:1]
    marked = [replace(t, origin=f"{template.origin} {change}") for t in unique(found)]
    return [t for t in marked if t.key != template.key]


def _resized(template: Template, resize: Resize, axis: int | None) -> Iterator[Template]:
    operands = [i for i, t in enumerate(template.types) if t.rank]
    tuples = [n for n, v in template.attributes.items() if _is_tuple_of_integers(v)]
    if (not operands and not tuples) or len(operands) + len(tuples) > 10:
        return
    choices = [
        (some, names)
        for names in _subsets(tuples)
        for some in _subsets(operands)
        if some or (names and not operands)
    ]
    choices.sort(key=lambda c: -len(c[0]) - len(c[1]))
    for some, names in choices:
        types = tuple(
            t.with_shape(_sizes(t.shape, resize, axis)) if i in some else t
            for i, t in enumerate(template.types)
        )
        changed = {n: _sizes(template.attributes[n], resize, axis) for n in names}
        attributes = Attributes(dict(template.attributes) | changed)
        yield replace(template, types=types, attributes=attributes)


def _sizes(sizes: Sequence[int], resize: Resize, axis: int | None) -> tuple[int, ...]:
    return tuple(resize(n) if axis is None or axis == i else n for i, n in enumerate(sizes))


def _subsets(items: Sequence[Any]) -> list[tuple[Any, ...]]:
    sizes = range(len(items), -1, -1)
    return [found for size in sizes for found in itertools.combinations(items, size)]


def _is_tuple_of_integers(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(type(v) is int for v in value)
