"""The product family: rows of activations times packed weights, with prologue and epilogue.

Few rows (decoding) stream the panels once: an item owns a run of panels, keeps a vector of 16
outputs per row and broadcasts one input after the other. Many rows (prompts) are blocked: an item
owns tiles of rows and panels and keeps them in registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ptir.codegen.expr import Apply, Cell, Expr, Load, Var, constant
from ptir.codegen.families.rows import Rows, RowWriter
from ptir.codegen.graph import Builder, Graph, Unfusible, follows
from ptir.codegen.index import Axis, Index, axis, digits, number
from ptir.codegen.kernel import Family, Group, Kernel, Site, finished, scratch_value
from ptir.codegen.panels import LANES, UNPACK, Panels, panels_of
from ptir.codegen.quantized import UNIT, Quantized, quantized_weight
from ptir.codegen.regions import exits
from ptir.codegen.writer import Writer
from ptir.ir.program import Instruction
from ptir.types import F32, I32, TensorType

FEW: Final = 8
"""Most rows that are streamed rather than blocked."""
HELD: Final = 16384
"""Most activations that an item keeps to itself."""


@dataclass(frozen=True)
class Product:
    """One product: activations ``lhs`` [rows, inputs], packed weights, and what comes after it.

    ``prologue`` is the row program that computes the activations, where it runs in every item.
    """

    position: int
    lhs: int
    packed: int
    panels: Panels
    rows: int
    prologue: Group | None = None
    quantized: Quantized | None = None

    @property
    def inputs(self) -> int:
        """Activations in a row."""
        return self.panels.inputs if self.quantized is None else self.quantized.inputs

    @property
    def is_streamed(self) -> bool:
        """Whether the rows are few."""
        return self.rows <= FEW

    @property
    def is_held(self) -> bool:
        """Whether an item may keep the activations to itself, where they are not in memory."""
        return self.is_streamed and self.rows * self.inputs <= HELD


def match(graph: Graph, position: int) -> Group | None:
    """The group of a product with unpacked weights and its epilogue."""
    product = _product(graph, position)
    if product is None:
        return None
    found = graph.results[position][0]
    type = graph.type(found)

    def joins(reader: int) -> bool:
        made = graph.block.instructions[reader]
        return follows(made) and made.types[0].size == type.size

    members, exit = frozenset((position,)), found
    for value, inside in exits(graph, (found,), joins):
        if not _aligned(graph, product, found, value, frozenset((position, *inside))):
            break
        members, exit = frozenset((position, *inside)), value
    inner = {v for p in members for v in graph.results[p]}
    reads = {v for p in members for v in graph.block.instructions[p].operands} - inner
    made = graph.block.instructions[position]
    reads = reads - {made.operands[1]} | {product.packed}
    if product.quantized is not None:
        reads |= {product.quantized.scale, product.quantized.bias}
    return Group("product", members, tuple(sorted(reads)), (exit,), product, (product.packed,))


def _product(graph: Graph, position: int) -> Product | None:
    made = graph.block.instructions[position]
    if made.op != "dot_general" or made.types[0].dtype != F32:
        return None
    lhs, rhs = made.operands
    rows = math.prod(graph.type(lhs).shape[:-1])
    last = graph.type(lhs).rank - 1
    if graph.type(lhs).dtype != F32 or made.attributes["lhs_batch"]:
        return None
    unpack = graph.instruction(rhs)
    for contract in (0, 1):
        if not _contracts(made, last, contract):
            continue
        quantized = quantized_weight(graph, unpack, contract)
        if quantized is not None:
            return Product(
                position, lhs, quantized.words, quantized.panels, rows, quantized=quantized
            )
    if unpack is not None and unpack.op == "cast":
        unpack = graph.instruction(unpack.operands[0])
    if unpack is None or unpack.op != "composite" or unpack.name != UNPACK:
        return None
    packed = unpack.operands[0]
    panels = panels_of(graph.type(packed), unpack.attributes)
    if not _contracts(made, last, 1 if panels.layout == "oi" else 0):
        return None
    return Product(position, lhs, packed, panels, rows)


def _contracts(made: Instruction, lhs: int, rhs: int) -> bool:
    found = (made.attributes["lhs_contract"], made.attributes["rhs_contract"])
    return found == ((lhs,), (rhs,))


def _aligned(
    graph: Graph, product: Product, hero: int, value: int, members: frozenset[int]
) -> bool:
    """Whether the epilogue reads the product exactly where the kernel holds it."""
    inside = {v for p in members for v in graph.results[p]}
    whole, left = divmod(product.panels.outputs, LANES)
    vector = axis("p", whole) * LANES + axis("lane", LANES)
    for place in (vector, *(number(whole * LANES + n) for n in range(left))):
        flat = axis("m", product.rows) * product.panels.outputs + place
        held = (digits(flat, graph.type(hero).shape), Var(F32, "acc"))
        try:
            builder = Builder(graph, lambda v: v not in inside, {hero: held})
            builder.at(value, digits(flat, graph.type(value).shape))
        except Unfusible:
            return False
    return True


def rows_in_memory(graph: Graph, product: Product, made: frozenset[int]) -> int:
    """The value to store so that each row of activations lies in memory without gaps.

    ``made`` are the values that kernels store anyway.
    """
    base = graph.behind_views(product.lhs, made)
    builder = Builder(graph, lambda value: value == base)
    size = product.inputs
    flat = axis("m", product.rows) * size + axis("k", size)
    found = builder.at(product.lhs, digits(flat, graph.type(product.lhs).shape))
    straight = isinstance(found, Load) and found.index.coefficient(Axis("k", size)) == 1
    return base if straight else product.lhs


def write(group: Group, site: Site) -> Kernel:
    """The schedule for the number of rows."""
    product: Product = group.detail
    return (_Streamed if product.is_streamed else _Blocked)(group, site).kernel()


class _Writing:
    """What both schedules share: activations, weights, and the epilogue."""

    def __init__(self, group: Group, site: Site) -> None:
        self.group, self.site = group, site
        self.product: Product = group.detail
        self.panels: Panels = self.product.panels
        self.writer: Writer = site.writer()
        self.graph = site.graph
        inside = {v for p in group.members for v in self.graph.results[p]}
        self.builder = site.builder()
        self.builder.stored = lambda v: v not in inside and site.stored(v)
        self.hero = self.graph.results[self.product.position][0]
        self.tiles = site.tiles

    def items(self, pieces: int) -> int:
        """Items for ``pieces`` equal pieces of the whole product."""
        work = self.product.rows * self.panels.outputs * self.product.inputs
        return self.site.items(pieces, work)

    def activation(self, row: Index, input: Index) -> Expr:
        """One activation as an expression of what is stored."""
        shape = self.graph.type(self.product.lhs).shape
        at = digits(row * self.product.inputs + input, shape)
        return self.builder.at(self.product.lhs, at)

    def weight(self, output: Index, input: Index) -> Expr:
        """One weight, or one per lane."""
        return self.panels.weight(self.product.packed, output, input)

    def finish(self, row: Index, output: Index, name: str, wide: bool) -> None:
        """The epilogue and the store of one output, or one per lane."""
        (exit,) = self.group.exits
        flat = row * self.panels.outputs + output
        held = (digits(flat, self.graph.type(self.hero).shape), Var(F32, name, wide))
        type = self.graph.type(exit)
        expr = self.builder.holding({self.hero: held}).at(exit, digits(flat, type.shape))
        self.writer.store(exit, type.dtype, flat, expr)

    def finish_panel(self, row: Index, panel: Index, name: str) -> None:
        """The epilogue of a panel's 16 outputs; the last panel may have fewer.

        Row and panel become variables, so that the epilogue's places are simple to compare.
        """
        whole, left = divmod(self.panels.outputs, LANES)
        writer, lane = self.writer, Axis("lane", LANES)
        at = [writer.let(I32, False, writer.index(index)) for index in (row, panel)]
        row = axis(at[0], self.product.rows)
        if whole:
            guard = f"if ({at[1]} < {whole})" if left else ""
            with writer.block(guard), writer.lanes(lane):
                output = axis(at[1], whole) * LANES + axis("lane", LANES)
                self.finish(row, output, name, True)
        if left:
            with writer.block("else" if whole else ""):
                for place in range(left):
                    one = writer.dialect.lane(name, place)
                    self.finish(row, number(whole * LANES + place), one, False)


class _Streamed(_Writing):
    """Few rows: every weight is read once, in the order in which it lies in memory."""

    def kernel(self) -> Kernel:
        """An item per run of panels."""
        writer, panels = self.writer, self.panels
        items = self.items(panels.count)
        read = self._activations()
        if self.product.quantized is not None:
            self._sums(self.product.quantized, read)
        writer.share(panels.count, items)
        with writer.loop(Axis("p", panels.count), "first", "last"):
            if self.product.quantized is None:
                self._panel(read, axis("p", panels.count))
            else:
                self._groups(self.product.quantized, read, axis("p", panels.count))
        return finished(self.group, writer, items)

    def _activations(self) -> bool:
        """Compute what is not simply stored into a private array; says whether there is one."""
        rows, size = self.product.rows, self.product.inputs
        if self.product.prologue is None and self._is_stored():
            return False
        writer = self.writer
        writer.line(writer.dialect.private("x", rows * size))
        with writer.loop(Axis("m", rows), "0", str(rows)):
            row = axis("m", rows)
            prologue = self.product.prologue
            if prologue is not None:
                self._run(prologue, row)
            else:
                _each(
                    writer, size, lambda place: self._put(row, place, self.activation(row, place))
                )
        return True

    def _run(self, prologue: Group, row: Index) -> None:
        """The row program that makes the activations, for one row."""
        rows: Rows = prologue.detail
        inside = {v for p in prologue.members for v in self.graph.results[p]}
        builder = self.site.builder()
        builder.stored = lambda v: v not in inside and self.site.stored(v)
        body = RowWriter(self.writer, builder, rows, row)
        body.stages()
        body.each(lambda place: self._put(row, place, body.exit(rows.exits[0], place)))

    def _put(self, row: Index, place: Index, expr: Expr) -> None:
        self.writer.put("x", row * self.product.inputs + place, expr)

    def _is_stored(self) -> bool:
        """Whether the activations are a matrix in memory."""
        expr = self.activation(axis("m", self.product.rows), axis("k", self.product.inputs))
        if not isinstance(expr, Load):
            return False
        return expr.index.coefficient(Axis("k", self.product.inputs)) == 1

    def _panel(self, private: bool, panel: Index) -> None:
        writer, rows = self.writer, self.product.rows
        chains = max(1, self.tiles.chains // rows)
        while self.panels.inputs % (chains * self.panels.per):
            chains //= 2
        step = max(chains, 1) * self.panels.per
        steps = self.panels.inputs // step
        zero = writer.dialect.splat(F32, LANES, writer.dialect.literal(F32, 0.0))
        names = {(m, c): f"a{m}_{c}" for m in range(rows) for c in range(max(chains, 1))}
        for name in names.values():
            writer.line(f"{writer.type(F32, True)} {name} = {zero};")
        with writer.loop(Axis("k", steps), "0", str(steps)), writer.lanes(Axis("lane", LANES)):
            for inner in range(step):
                self._step(private, panel, axis("k", steps) * step + inner, inner, names)
        for m in range(rows):
            total = " + ".join(names[m, c] for c in range(max(chains, 1)))
            with writer.block(""):
                writer.line(f"const {writer.type(F32, True)} acc = {total};")
                self.finish_panel(number(m), panel, "acc")

    def _input(self, private: bool, row: Index, input: Index) -> Expr:
        """One activation where the item has it."""
        if private:
            return Cell(F32, "x", row * self.product.inputs + input)
        return self.activation(row, input)

    def _sums(self, quantized: Quantized, private: bool) -> None:
        """The sum of every group of activations into the private array ``sums``."""
        writer, rows, size = self.writer, self.product.rows, quantized.group
        groups = quantized.inputs // size
        writer.line(writer.dialect.private("sums", rows * groups))
        with writer.loop(Axis("m", rows), "0", str(rows)):
            row = axis("m", rows)
            with writer.loop(Axis("h", groups), "0", str(groups)):
                group = axis("h", groups)
                found = self._sum(private, row, group * size, size)
                at = writer.index(row * groups + group)
                writer.line(writer.dialect.private_store(1, "sums", at, found))

    def _sum(self, private: bool, row: Index, first: Index, size: int) -> str:
        """The sum of a group of activations: its vectors, then their lanes."""
        writer, whole = self.writer, size // LANES
        parts = [self._input(private, row, first + place) for place in range(whole * LANES, size)]
        total = [writer.scalar(part) for part in parts]
        if whole:
            with writer.lanes(Axis("lane", LANES)):
                vectors = [
                    writer.wide(self._input(private, row, first + v * LANES + axis("lane", LANES)))
                    for v in range(whole)
                ]
                name = writer.let(F32, True, " + ".join(vectors))
            total.append(writer.folded("add", F32, name))
        return " + ".join(total)

    def _groups(self, quantized: Quantized, private: bool, panel: Index) -> None:
        """A panel group by group: words times activations, scaled once."""
        writer, rows = self.writer, self.product.rows
        groups = quantized.inputs // quantized.group
        zero = writer.dialect.splat(F32, LANES, writer.dialect.literal(F32, 0.0))
        for m in range(rows):
            writer.line(f"{writer.type(F32, True)} y{m} = {zero};")
        with writer.loop(Axis("h", groups), "0", str(groups)), writer.lanes(Axis("lane", LANES)):
            self._group(quantized, private, panel, axis("h", groups))
        for m in range(rows):
            self.finish_panel(number(m), panel, f"y{m}")

    def _group(self, quantized: Quantized, private: bool, panel: Index, group: Index) -> None:
        writer, rows = self.writer, self.product.rows
        output = panel * LANES + axis("lane", LANES)
        groups, words = quantized.inputs // quantized.group, quantized.group // quantized.per
        chains = max(1, self.tiles.chains // rows)
        raise_by = UNIT[quantized.bits] - (quantized.zero or 0.0)
        sums = {m: Cell(F32, "sums", number(m * groups) + group) for m in range(rows)}
        for m in range(rows):
            start = Apply(F32, "mul", constant(F32, -raise_by), sums[m])
            zero = writer.wide(constant(F32, 0.0))
            for c in range(chains):
                text = zero if c else writer.wide(start)
                writer.line(f"{writer.type(F32, True)} a{m}_{c} = {text};")
        for w in range(words):
            word = quantized.word(output, group * words + w)
            for place in range(quantized.per):
                value = writer.wide(quantized.raised(word, place))
                input = group * quantized.group + (w * quantized.per + place)
                for m in range(rows):
                    x = writer.widened(writer.value(self._input(private, number(m), input)))
                    name = f"a{m}_{place % chains}"
                    writer.line(f"{name} = {_fma(writer, x, value, name)};")
        step = writer.wide(quantized.scaled(self.builder, output, group))
        for m in range(rows):
            total = "(" + " + ".join(f"a{m}_{c}" for c in range(chains)) + ")"
            writer.line(f"y{m} = {_fma(writer, total, step, f'y{m}')};")
            if quantized.zero is None:
                offset = writer.wide(quantized.offset(self.builder, output, group))
                x = writer.wide(sums[m])
                writer.line(f"y{m} = {_fma(writer, offset, x, f'y{m}')};")

    def _step(
        self,
        private: bool,
        panel: Index,
        input: Index,
        inner: int,
        names: dict[tuple[int, int], str],
    ) -> None:
        """Multiply one input of every row with the weights of 16 outputs."""
        writer = self.writer
        weights = writer.wide(self.weight(panel * LANES + axis("lane", LANES), input))
        chains = len(names) // self.product.rows
        for m in range(self.product.rows):
            x = self._input(private, number(m), input)
            name = names[m, inner % chains]
            factor = writer.widened(writer.value(x))
            writer.line(f"{name} = {_fma(writer, factor, weights, name)};")


def _each(writer: Writer, size: int, body: object) -> None:
    """Call ``body`` with every place below ``size``: whole vectors, then single elements."""
    whole = size // LANES
    if whole:
        with writer.loop(Axis("v", whole), "0", str(whole)), writer.lanes(Axis("lane", LANES)):
            body(axis("v", whole) * LANES + axis("lane", LANES))  # type: ignore[operator]
    for place in range(whole * LANES, size):
        with writer.block(""):
            body(number(place))  # type: ignore[operator]


def _fma(writer: Writer, a: str, b: str, c: str) -> str:
    return writer.dialect.apply("fma", F32, F32, LANES, [a, b, c])


class _Blocked(_Writing):
    """Many rows: a few panels stay in the cache while every row passes, tile by tile."""

    def kernel(self) -> Kernel:
        """An item per run of panel groups."""
        writer, count = self.writer, self.panels.count
        wide = self.tiles.panels
        whole, left = divmod(count, wide)
        groups = whole + (left > 0)
        items = self.items(groups)
        writer.share(groups, items)
        scratch: tuple[TensorType, ...] = ()
        if self.is_unpacked:
            scratch = (TensorType(F32, (items * self._depth * wide * LANES,)),)
        with writer.loop(Axis("g", groups), "first", "last"):
            if whole:
                with writer.block(f"if (g < {whole})" if left else ""):
                    self._group(axis("g", whole) * wide, wide)
            if left:
                with writer.block("else" if whole else ""):
                    self._group(number(whole * wide), left)
        return finished(self.group, writer, items, scratch)

    @property
    def _depth(self) -> int:
        return self.product.inputs

    def _group(self, panel: Index, panels: int) -> None:
        """A group of panels, made floats once for all rows if they are not."""
        quantized = self.product.quantized
        for p in range(panels if self.is_unpacked else 0):
            if quantized is not None:
                self._dequantize(quantized, panel + p, p)
            else:
                self._widen(panel + p, p)
        self._rows(panel, panels)

    @property
    def is_unpacked(self) -> bool:
        """Whether weights become floats in scratch memory before the rows pass."""
        tiles = self.product.rows // self.tiles.rows
        return self.product.quantized is not None or (self.panels.dtype != F32 and tiles >= FEW)

    def _held(self, panel: int, input: Index) -> Index:
        """Where a weight of the item's group is in the scratch memory."""
        item = Index({Axis("item", 1 << 16): 1})
        place = item * (self.tiles.panels * self._depth) + (panel * self._depth)
        return (place + input) * LANES + axis("lane", LANES)

    def _dequantize(self, quantized: Quantized, panel: Index, number_: int) -> None:
        """One panel as floats into the scratch memory."""
        writer, source = self.writer, scratch_value(self.group, 0)
        groups, words = quantized.inputs // quantized.group, quantized.group // quantized.per
        output = panel * LANES + axis("lane", LANES)
        with writer.loop(Axis("h", groups), "0", str(groups)), writer.lanes(Axis("lane", LANES)):
            group = axis("h", groups)
            step = quantized.scaled(self.builder, output, group)
            raised = Apply(F32, "mul", step, constant(F32, -UNIT[quantized.bits]))
            start = Apply(F32, "add", raised, quantized.offset(self.builder, output, group))
            for w in range(words):
                word = quantized.word(output, group * words + w)
                for place in range(quantized.per):
                    value = Apply(F32, "fma", quantized.raised(word, place), step, start)
                    input = group * quantized.group + (w * quantized.per + place)
                    writer.store(source, F32, self._held(number_, input), value)

    def _widen(self, panel: Index, number_: int) -> None:
        """One panel of 16-bit weights as floats into the scratch memory."""
        writer, source, per = self.writer, scratch_value(self.group, 0), self.panels.per
        output, words = panel * LANES + axis("lane", LANES), self._depth // per
        with writer.loop(Axis("k", words), "0", str(words)), writer.lanes(Axis("lane", LANES)):
            for inner in range(per):
                input = axis("k", words) * per + inner
                found = self.weight(output, input)
                writer.store(source, F32, self._held(number_, input), found)

    def _rows(self, panel: Index, panels: int) -> None:
        """Every row times one group of panels."""
        tall = self.tiles.rows
        whole, left = divmod(self.product.rows, tall)
        with self.writer.loop(Axis("t", whole), "0", str(whole)):
            self._tile(axis("t", whole) * tall, tall, panel, panels)
        if left:
            with self.writer.block(""):
                self._tile(number(whole * tall), left, panel, panels)

    def _tile(self, row: Index, rows: int, panel: Index, panels: int) -> None:
        """A tile of outputs in registers, finished at once."""
        writer = self.writer
        zero = writer.dialect.splat(F32, LANES, writer.dialect.literal(F32, 0.0))
        names = [[f"a{m}_{p}" for p in range(panels)] for m in range(rows)]
        for name in (name for line in names for name in line):
            writer.line(f"{writer.type(F32, True)} {name} = {zero};")
        per = 1 if self.is_unpacked else self.panels.per
        steps = self._depth // per
        with writer.loop(Axis("k", steps), "0", str(steps)), writer.lanes(Axis("lane", LANES)):
            for inner in range(per):
                self._step(row, panel, axis("k", steps) * per + inner, names)
        for m in range(rows):
            for p in range(panels):
                with writer.block(""):
                    self.finish_panel(row + m, panel + p, names[m][p])

    def _step(self, row: Index, panel: Index, input: Index, names: list[list[str]]) -> None:
        """Multiply one input of the tile's rows with the weights of its panels."""
        writer = self.writer
        weights = [writer.wide(self._weight(panel, p, input)) for p in range(len(names[0]))]
        for m, line in enumerate(names):
            factor = writer.widened(writer.value(self.activation(row + m, input)))
            for name, weight in zip(line, weights, strict=True):
                writer.line(f"{name} = {_fma(writer, factor, weight, name)};")

    def _weight(self, panel: Index, number_: int, input: Index) -> Expr:
        if self.is_unpacked:
            return Load(F32, scratch_value(self.group, 0), self._held(number_, input))
        return self.weight((panel + number_) * LANES + axis("lane", LANES), input)


FAMILY = Family("product", match, write)
