"""Cuts parameters by rows: products and lookups that read some of them at a time.

Under a memory budget a program's launches must do with a part of it. A product with a weight
becomes products with runs of its rows, whose results stand one behind the other; a lookup becomes
lookups in each run, of which one gives the row. Every number is computed as before, so nothing
changes in the results. It runs behind the pipeline, on parameters as they are resident: a run is
``Rows`` of one, and nothing is packed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ptir.ir.graph import Ref, emit, freeze, inline, reachable, source
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops.fill import like, positions
from ptir.ops.implementations import lowered_again
from ptir.ops.record import op
from ptir.ops.rounded import BYTES, PAIRS
from ptir.params.rows import Rows
from ptir.passes.ranges import CompositeRange, NotByRanges, Ranges
from ptir.types import I32, TensorType

MOST_PARTS: Final = 64
"""A run of rows is no smaller a part of all parameters: each costs a launch, and compiling."""

_Part: TypeAlias = tuple[int, int, int]
"""An input, its first place and the one behind its last."""
_Run: TypeAlias = tuple[int, int]
Operands: TypeAlias = Sequence[tuple[int, int]]
"""Operands that are a weight or come with it, and along which axis each has its outputs."""


def _contraction(instruction: Instruction, types: Sequence[TensorType]) -> Operands:
    attributes = instruction.attributes
    plain = not attributes["rhs_batch"] and types[1].rank == 2
    if not plain or len(attributes["rhs_contract"]) != 1:
        return ()
    return ((1, 1 - attributes["rhs_contract"][0]),)


def _linear(count: int, first: int) -> Callable[[Instruction, Sequence[TensorType]], Operands]:
    """Of a composite with ``count`` operands for the weight from ``first`` on, and a bias."""

    def found(instruction: Instruction, types: Sequence[TensorType]) -> Operands:
        axis = 0 if instruction.attributes["layout"] == "oi" else 1
        weight = [(first + n, axis) for n in range(count)]
        return (*weight, *((n, 0) for n in range(first + count, len(types))))

    return found


PRODUCTS: Final[Mapping[str, Callable[[Instruction, Sequence[TensorType]], Operands]]] = {
    "dot_general": _contraction,
    "linear": _linear(1, 1),
    "quantized_linear": _linear(3, 1),
    BYTES: _linear(3, 3),
    PAIRS: _linear(1, 1),
}
"""What has a result for each row of a weight, along its last axis."""


def _table(instruction: Instruction, types: Sequence[TensorType]) -> Operands:
    is_first = instruction.op == "composite" or instruction.attributes["axis"] == 0
    return ((0, 0),) if is_first and types[1].dtype == I32 else ()


LOOKUPS: Final = {"take": _table, "embedding": _table}
"""What gives rows of a table by index."""


@dataclass(frozen=True)
class CutParameters:
    """A program some of whose parameters are read by rows."""

    program: Program
    rows: Mapping[str, Rows] = field(default_factory=dict[str, Rows])
    """What its ports of rows are, by name."""
    apart: tuple[frozenset[int], ...] = ()
    """Numbers of such inputs, those of a run of rows together."""
    whole: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why parameters are not cut that would have to be, by name."""


def cut_parameters(
    program: Program,
    largest: int,
    unit: int = 1,
    composites: Mapping[str, CompositeRange] | None = None,
    check_indices: bool = False,
) -> CutParameters:
    """``program`` reading at most ``largest`` bytes of a weight at once, where that is possible.

    Runs have a multiple of ``unit`` rows; ``composites`` are the backend's rules. With
    ``check_indices`` what a lookup is given stays visible as it is.
    """
    return _Cutting(program, largest, unit, composites or {}, check_indices).result()


class _Cutting:
    """One program: ``inputs`` stand for its inputs, ``parts`` for rows of them."""

    def __init__(
        self,
        program: Program,
        largest: int,
        unit: int,
        composites: Mapping[str, CompositeRange],
        checked: bool,
    ) -> None:
        self._program, self._unit, self._checked = program, unit, checked
        block = program.main
        self._is_parameter = [port.kind == "parameter" for port in program.ports]
        typed = zip(block.inputs, self._is_parameter, strict=True)
        self._sizes = [type.nbytes if is_one else 0 for type, is_one in typed]
        self._largest = max(largest, sum(self._sizes) // MOST_PARTS)
        self._inputs = [source(type) for type in block.inputs]
        self._number = {ref.key: number for number, ref in enumerate(self._inputs)}
        self._parts: dict[_Part, Ref] = {}
        self._part_of: dict[tuple[int, int], _Part] = {}
        self._outputs: dict[_Part, tuple[int, int, int]] = {}
        self._run = (0, 0, 0)
        self._together: list[list[_Part]] = []
        self._whole: dict[str, str] = {}
        self._ranges = Ranges(self._leaf, composites)

    def result(self) -> CutParameters:
        """The program, its parameters cut."""
        program = self._program
        if sum(self._sizes) <= self._largest:
            return CutParameters(program)
        outputs = inline(program.main, self._inputs, self._visit)
        read = _sources(outputs)
        parts = [key for key, ref in self._parts.items() if ref.key in read]
        if not parts:
            return CutParameters(program, whole=self._whole)
        cut = {number for number, _, _ in parts}
        # What is no parameter stands in front, so it keeps its number.
        kept = [n for n, ref in enumerate(self._inputs) if n not in cut or ref.key in read]
        rows = [self._rows(key) for key in parts]
        ports = (*(program.ports[n] for n in kept), *(Port(one.name, "parameter") for one in rows))
        given = [*(self._inputs[n] for n in kept), *(self._parts[key] for key in parts)]
        number = {key: len(kept) + n for n, key in enumerate(parts)}
        groups = (frozenset(number[k] for k in keys if k in number) for keys in self._together)
        apart = tuple(dict.fromkeys(group for group in groups if group))
        made = Program(freeze(outputs, given), ports, program.version)
        return CutParameters(made, {one.name: one for one in rows}, apart, self._whole)

    def _rows(self, key: _Part) -> Rows:
        number, first, end = key
        type = self._program.main.inputs[number]
        name = self._program.ports[number].name
        return Rows(name, first, end, type, self._outputs[key])

    def _visit(self, instruction: Instruction, operands: tuple[Ref, ...]) -> Sequence[Ref] | None:
        """The instruction in parts, or None where it stays."""
        name = instruction.name
        kind = PRODUCTS.get(name) or LOOKUPS.get(name)
        wanted = kind(instruction, [ref.type for ref in operands]) if kind else ()
        nbytes = sum(self._weight_bytes(operands[n]) for n, _ in wanted)
        if nbytes <= self._largest:
            return None
        (first, axis), before = wanted[0], len(self._together)
        runs = self._runs(operands[first].type.shape[axis], nbytes)
        join = self._looked_up if name in LOOKUPS else self._joined
        try:
            if len(runs) == 1:
                raise NotByRanges(f"{self._unit} rows is the least that is read at once")
            return [join(instruction, operands, wanted, runs)]
        except NotByRanges as reason:
            del self._together[before:]
            for number in self._below(operands[first]):
                self._whole[self._program.ports[number].name] = f"{name}: {reason}"
            return None

    def _runs(self, rows: int, nbytes: int) -> list[_Run]:
        """Equal runs of rows of a weight of so many bytes, in whole units; the last may be less."""
        each = max(1, self._largest * rows // nbytes // self._unit) * self._unit
        count = -(-rows // each)
        each = -(-rows // (count * self._unit)) * self._unit
        return [(first, min(first + each, rows)) for first in range(0, rows, each)]

    def _in_part(self, operands: tuple[Ref, ...], wanted: Operands, run: _Run) -> list[Ref]:
        """The operands of the part for a run of rows."""
        found, (weight, along) = list(operands), wanted[0]
        self._run = (*run, operands[weight].type.shape[along])
        for number, axis in wanted:
            found[number] = self._ranges.of(operands[number], axis, *run)
        read = _sources([found[number] for number, _ in wanted])
        self._together.append([self._part_of[key] for key in read if key in self._part_of])
        return found

    def _joined(
        self,
        instruction: Instruction,
        operands: tuple[Ref, ...],
        wanted: Operands,
        runs: Sequence[_Run],
    ) -> Ref:
        """The products with each run of rows, one behind the other."""
        (type,), products = instruction.types, list[Ref]()
        for first, end in runs:
            part = type.with_shape((*type.shape[:-1], end - first))
            given = self._in_part(operands, wanted, (first, end))
            products.append(_again(instruction, given, part))
        found: Ref = op("concat")(*products, axis=type.rank - 1)
        return found

    def _looked_up(
        self,
        instruction: Instruction,
        operands: tuple[Ref, ...],
        wanted: Operands,
        runs: Sequence[_Run],
    ) -> Ref:
        """The rows that the lookup in the right run gives: the last whose first is not beyond.

        An index below all clamps to the first row of the first run, one above to the last of all.
        """
        (type,), ids = instruction.types, operands[1]
        if self._checked:  # the places in each run are inside, so these are looked at before
            ids = op("take")(positions((runs[-1][1],), 0), ids, axis=0)
        found: Ref | None = None
        for first, end in runs:
            table = self._in_part(operands, wanted, (first, end))[0]
            inside = op("minimum")(op("maximum")(ids, like(first, ids)), like(end - 1, ids))
            place = op("sub")(inside, like(first, ids))
            rows = _again(instruction, [table, place], type)
            found = rows if found is None else _from(first, ids, rows, found)
        assert found is not None
        return found

    def _leaf(self, value: Ref, axis: int, first: int, end: int) -> Ref:
        """Rows of a parameter."""
        number = self._number[value.key]
        if not self._is_parameter[number]:
            raise NotByRanges("the weight is computed from more than parameters")
        if axis:
            raise NotByRanges(
                f"its outputs lie along axis {axis} of {value.type}, not in one piece"
            )
        key = number, first, end
        if key not in self._parts:
            self._outputs[key] = self._run
            self._parts[key] = source(self._rows(key).type)
            self._part_of[self._parts[key].key] = key
        return self._parts[key]

    def _below(self, value: Ref) -> Iterator[int]:
        """The parameters that a value is computed from."""
        numbers = (self._number.get(key) for key in _sources([value]))
        return (n for n in numbers if n is not None and self._is_parameter[n])

    def _weight_bytes(self, value: Ref) -> int:
        """Bytes of the parameters behind an operand; none where it comes from anything else."""
        numbers = [self._number.get(key) for key in _sources([value])]
        known = [n for n in numbers if n is not None and self._is_parameter[n]]
        return sum(self._sizes[n] for n in known) if len(known) == len(numbers) else 0


def _sources(values: Sequence[Ref]) -> set[tuple[int, int]]:
    """The values from outside that some are computed from."""
    return {(node.serial, 0) for node in reachable(values) if node.is_source}


def _again(instruction: Instruction, operands: Sequence[Ref], type: TensorType) -> Ref:
    """The instruction on a part of its weight, with a result of ``type``."""
    if instruction.op != "composite":
        attributes: dict[str, Any] = dict(instruction.attributes)
        found: Ref = op(instruction.op)(*operands, **attributes)
        return found
    region = _lowering(instruction, [operand.type for operand in operands])
    return emit("composite", operands, instruction.attributes, (type,), (region,))[0]


def _lowering(composite: Instruction, types: Sequence[TensorType]) -> Block:
    """What a composite computes of other types than it was captured with."""
    found = lowered_again(composite, types)
    if found is None:
        raise NotByRanges(f"nothing is known of {composite.name} but its lowering")
    return found


def _from(first: int, ids: Ref, rows: Ref, before: Ref) -> Ref:
    """``rows`` where an index is ``first`` or above, elsewhere what was found ``before``."""
    is_here = op("compare")(ids, like(first, ids), direction="ge")
    shape = (*ids.type.shape, *[1] * (rows.type.rank - ids.type.rank))
    mask = op("broadcast_to")(op("reshape")(is_here, shape=shape), shape=rows.type.shape)
    found: Ref = op("select")(mask, rows, before)
    return found
