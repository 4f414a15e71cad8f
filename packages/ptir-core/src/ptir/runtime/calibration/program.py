"""A model's program cut where weights are multiplied, so that inputs of matrices can be seen.

A *site* is where some matrices meet the same inputs: found in the program by what is computed
there, ``linear`` and ``expert_linear``, not by what a family calls it. Matrices joined into one
product are one site. Before each site the program is cut: what is behind it runs once the matrices
of the site are quantized, so they are calibrated for what comes from matrices quantized before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ptir.ir.program import Block, Instruction, Port, Program

LINEAR: Final = "linear"
EXPERTS: Final = "expert_linear"


@dataclass(frozen=True)
class Product:
    """A product: the values of its inputs and of the experts chosen, and its matrices.

    ``weights`` are the numbers of ports, one's outputs behind the other's; ``axis`` is that of
    their inputs. Without experts ``chosen`` is None and ``experts`` 1.
    """

    inputs: int
    chosen: int | None
    experts: int
    weights: tuple[int, ...]
    axis: int
    position: int

    @property
    def key(self) -> tuple[int, int | None]:
        """Equal for products of one site."""
        return self.inputs, self.chosen


class Flow:
    """Where the values of a program's main block come from and where they go."""

    def __init__(self, program: Program) -> None:
        self.program, self.block = program, program.main
        self.results = [results for results, _ in self.block.numbered()]
        self.made = {v: at for at, results in enumerate(self.results) for v in results}
        self.users: defaultdict[int, list[int]] = defaultdict(list)
        for at, instruction in enumerate(self.block.instructions):
            for value in dict.fromkeys(instruction.operands):
                self.users[value].append(at)
        self.parameters = {n for n, p in enumerate(program.ports) if p.kind == "parameter"}
        self.fed: set[int] = set(range(len(program.ports))) - self.parameters
        """Values that depend on inputs: all others are made anew wherever they are read."""
        for results, instruction in self.block.numbered():
            if not self.fed.isdisjoint(instruction.operands):
                self.fed.update(results)

    def maker(self, value: int) -> Instruction | None:
        """The instruction that makes a value; None for a port."""
        return self.block.instructions[self.made[value]] if value in self.made else None

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """The products by matrices that are parameters."""
        found = (self._product(at) for at in range(len(self.block.instructions)))
        return tuple(one for one in found if one is not None)

    def _product(self, at: int) -> Product | None:
        instruction = self.block.instructions[at]
        if instruction.name not in (LINEAR, EXPERTS) or instruction.op != "composite":
            return None
        x, weight = instruction.operands[:2]
        axis = 0 if instruction.attributes.get("layout") == "io" else 1
        ports = tuple(self.joined(weight, 1 - axis))
        if not self.parameters.issuperset(ports) or x not in self.fed:
            return None
        chosen, experts = None, 1
        if instruction.name == EXPERTS:
            chosen, experts = instruction.operands[2], int(str(instruction.attributes["experts"]))
        return Product(x, chosen, experts, ports, axis, at)

    def joined(self, value: int, axis: int) -> Iterator[int]:
        """The values that are joined along ``axis`` to make one; itself if it is not joined."""
        made = self.maker(value)
        if made is not None and made.op == "concat" and made.attributes["axis"] == axis:
            for one in made.operands:
                yield from self.joined(one, axis)
        else:
            yield value

    def only_multiplied(self, port: int) -> bool:
        """Whether products with one and the same inputs are all that reads a parameter."""
        keys = {one.key for one in self.products if port in one.weights}
        positions = {one.position for one in self.products if port in one.weights}
        return len(keys) == 1 and positions.issuperset(self.readers(port))

    def readers(self, value: int) -> Iterator[int]:
        """The positions of what reads a value, past where it is joined with others."""
        for at in self.users[value]:
            if self.block.instructions[at].op == "concat":
                for result in self.results[at]:
                    yield from self.readers(result)
            else:
                yield at


@dataclass(frozen=True)
class Piece:
    """Instructions between two sites as a program, behind the products of the site before it.

    ``inputs`` and ``outputs`` are values of the whole program, ``parameters`` its ports; the
    piece's own ports are the inputs, then the parameters. ``last`` are the inputs that nothing
    behind it needs.
    """

    products: tuple[Product, ...]
    program: Program
    inputs: tuple[int, ...]
    parameters: tuple[int, ...]
    outputs: tuple[int, ...]
    last: frozenset[int]


def pieces(flow: Flow, wanted: Collection[int]) -> list[Piece]:
    """A program cut before each site that has a matrix of ``wanted`` ports.

    Of the last one nothing is needed but its products.
    """
    cuts = {one.position: one for one in flow.products if not set(one.weights).isdisjoint(wanted)}
    parts: list[list[int]] = [[]]
    sites: list[list[Product]] = [[]]
    for at, results in enumerate(flow.results):
        if flow.fed.isdisjoint(results):
            continue
        product = cuts.get(at)
        if product is not None:
            if not sites[-1] or sites[-1][0].key != product.key:
                parts.append([])
                sites.append([])
            sites[-1].append(product)
        parts[-1].append(at)
    last_read: dict[int, int] = {}
    for number, part in enumerate(parts):
        for value in (v for at in part for v in flow.block.instructions[at].operands):
            last_read[value] = number
    return [
        _piece(flow, tuple(site), part, number, last_read)
        for number, (site, part) in enumerate(zip(sites, parts, strict=True))
    ]


def _piece(
    flow: Flow, products: tuple[Product, ...], part: list[int], number: int, last: dict[int, int]
) -> Piece:
    positions = sorted({*part, *_made_anew(flow, part)})
    made = {v for at in positions for v in flow.results[at]}
    read = dict.fromkeys(v for at in positions for v in flow.block.instructions[at].operands)
    outside = [v for v in read if v not in made]
    inputs = tuple(v for v in outside if v in flow.fed)
    parameters = tuple(v for v in outside if v not in flow.fed)
    outputs = tuple(v for at in part for v in flow.results[at] if last.get(v, -1) > number)
    ports = [
        *(Port(f"x{n}") for n in range(len(inputs))),
        *(Port(f"p{n}", "parameter") for n in range(len(parameters))),
    ]
    program = Program(_block(flow, positions, (*inputs, *parameters), outputs), tuple(ports))
    gone = frozenset(v for v in inputs if last[v] == number)
    return Piece(products, program, inputs, parameters, outputs, gone)


def _made_anew(flow: Flow, part: Iterable[int]) -> set[int]:
    """The instructions that depend on no input and that ``part`` reads, however far behind."""
    found: set[int] = set()
    waiting = [v for at in part for v in flow.block.instructions[at].operands]
    while waiting:
        value = waiting.pop()
        at = flow.made.get(value)
        if at is None or value in flow.fed or at in found:
            continue
        found.add(at)
        waiting += flow.block.instructions[at].operands
    return found


def _block(
    flow: Flow, positions: Sequence[int], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Block:
    """Some instructions as a block of their own."""
    values = (*inputs, *(v for at in positions for v in flow.results[at]))
    numbers = {value: number for number, value in enumerate(values)}
    instructions = tuple(
        replace(one, operands=tuple(numbers[v] for v in one.operands))
        for one in (flow.block.instructions[at] for at in positions)
    )
    types = tuple(flow.block.types[v] for v in inputs)
    return Block(types, instructions, tuple(numbers[v] for v in outputs))
