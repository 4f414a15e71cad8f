"""From nodes to text: **tables** of how each statement and each expression is spelled.

A dialect spells types, literals, scalar ops, memory and workgroups (``Dialect``); how these
stand together is what C, OpenCL C, CUDA C and MSL have in common, and is said here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ptir.backend.clike.names import RELATIONS
from ptir.backend.kernel import Argument, Dialect
from ptir.codegen.expressions.expr import Apply, Cell, Const, Coordinate, Expr, Var
from ptir.codegen.expressions.index import ZERO, Dynamic, Index, is_long, spelled
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import (
    FetchAdd,
    Gather,
    Hoisted,
    Lane,
    Poll,
    Read,
    ReduceLanes,
    ShuffleXor,
    Splat,
    Word,
)
from ptir.types import BOOL, I32, I64, U8, U32, DType

JOINED: Final = {"and": "&&", "or": "||"}


class Renderer:
    """Spells the statements of one kernel, whose arguments are known by name."""

    def __init__(self, dialect: Dialect, arguments: Mapping[str, Argument]) -> None:
        self.dialect = dialect
        self._arguments = arguments
        self._changing: frozenset[str] = frozenset()
        """The wide variables in scope that change, where the dialect spells those otherwise."""

    def lines(self, statements: Iterable[nodes.Statement], depth: int = 1) -> str:
        """The lines of statements, indented."""
        out: list[str] = []
        self._lines(statements, depth, out)
        return "\n".join(out)

    def _lines(self, statements: Iterable[nodes.Statement], depth: int, out: list[str]) -> None:
        begin = "  " * depth
        for one in statements:
            block = BLOCKS.get(type(one))
            if block is None:
                text = LINES[type(one)](self, one)
                if text:
                    out.append(begin + text)
                if isinstance(one, nodes.Let | nodes.Declare):
                    self._know(one)
                continue
            outside = self._changing
            for header, body in block(self, one):
                out.append(f"{begin}{header} {{")
                self._lines(body, depth + 1, out)
                out.append(begin + "}")
                self._changing = outside

    def _know(self, one: nodes.Let | nodes.Declare) -> None:
        """Know from here on, in this block, whether variables are wide and change."""
        if self.dialect.changing is None:
            return
        if isinstance(one, nodes.Let):
            self._changing -= {one.variable.name}
        else:
            self._changing |= {each.name for each in one.variables if each.wide}

    def variable(self, one: Var) -> str:
        """The value of a variable."""
        changing = self.dialect.changing
        if changing is None or not one.wide or one.name not in self._changing:
            return one.name
        return changing.value.format(self.type(one), one.name)

    def changed(self, one: Var, text: str) -> str:
        """What a variable that changes holds where its value is ``text``."""
        changing = self.dialect.changing
        return (
            text if changing is None or not one.wide else changing.held.format(self.type(one), text)
        )

    # --- expressions ---

    def text(self, expr: Expr) -> str:
        """The text of an expression."""
        return TEXTS[type(expr)](self, expr)

    def index(self, index: Index) -> str:
        """The text of an index."""
        return spelled(index, self.text, self.dialect.type(I64, 1))

    def condition(self, expr: Expr) -> str:
        """A mask where a language wants to know whether it holds."""
        if isinstance(expr, Apply) and expr.dtype == BOOL and not expr.wide:
            if expr.op in RELATIONS:
                a, b = (self.text(one) for one in expr.args)
                return f"{a} {RELATIONS[expr.op]} {b}"
            if expr.op in JOINED:
                return f" {JOINED[expr.op]} ".join(self._operand(expr, one) for one in expr.args)
            if expr.op == "not":
                return f"!({self.condition(expr.args[0])})"
        return self.text(expr)

    def _operand(self, outer: Apply, inner: Expr) -> str:
        """An operand of && or ||: in parentheses where it is of the other kind."""
        text = self.condition(inner)
        mixed = isinstance(inner, Apply) and inner.op in JOINED and inner.op != outer.op
        return f"({text})" if mixed else text

    def applied(self, expr: Apply) -> str:
        """A scalar op, lane by lane where it is wide."""
        args = [self.text(one) for one in expr.args]
        width = self.dialect.lanes if expr.wide else 1
        if expr.op == "select":
            if width == 1:
                args[0] = self.condition(expr.args[0])
            of = expr.args[1].dtype
        else:
            of = expr.args[0].dtype
        return self.dialect.apply(expr.op, expr.dtype, of, width, args)

    def coordinate(self, expr: Coordinate) -> str:
        """The text of an index as a number."""
        return self.dialect.apply("convert", expr.dtype, I32, 1, [self.index(expr.index)])

    def buffer(self, memory: str, dtype: DType, written: bool = False) -> str:
        """An argument as a pointer to elements of a type."""
        if self._arguments[memory].dtype == dtype:
            return memory
        return f"(({self.dialect.pointer(Argument('', dtype, written))}){memory})"

    def read(self, expr: Read) -> str:
        """The text that reads elements of an argument or an array."""
        width = self.dialect.lanes if expr.wide else 1
        if expr.memory not in self._arguments:
            place = self.index(expr.place)
            return self.dialect.private_load(width, expr.memory, place, expr.dtype)
        buffer = self.buffer(expr.memory, expr.dtype)
        if expr.base is not None:
            buffer = f"({buffer} + {self.index(expr.base)})"
        return self.dialect.load(expr.dtype, width, buffer, self.index(expr.index))

    def gathered(self, expr: Gather) -> str:
        """The text that makes a wide value of scalars; elements may be read all at once."""
        places = _places_of_lanes(expr.parts)
        if places is not None and places.memory in self._arguments:
            buffer = self.buffer(places.memory, expr.dtype)
            if places.rest != ZERO:
                buffer = f"({buffer} + {self.index(places.rest)})"
            found = self.dialect.looked_up(
                expr.dtype, buffer, self.variable(places.of), places.factor
            )
            if found is not None:
                return found
        return self.dialect.gathered(expr.dtype, [self.text(one) for one in expr.parts])

    # --- statements ---

    def type(self, variable: Var) -> str:
        """The word for the type of a variable."""
        return self.dialect.type(variable.dtype, self.dialect.lanes if variable.wide else 1)

    def declared(self, one: nodes.Declare) -> str:
        """The declaration of variables that change."""
        begun = zip(one.variables, one.values, strict=True) if one.values else ()
        each = [f"{v.name} = {self.changed(v, self.text(x))}" for v, x in begun]
        first, changing = one.variables[0], self.dialect.changing
        type = self.type(first)
        if changing is not None and first.wide:
            type = changing.type.format(type)
        return f"{type} {', '.join(each or [v.name for v in one.variables])};"

    def array(self, one: nodes.Array) -> str:
        """An array of the thread, or one that its workgroup shares."""
        if one.numbers:
            return self.dialect.constants(one.name, one.numbers)
        if not one.shared:
            return self.dialect.private(one.name, one.size, one.dtype)
        type = self.dialect.type(one.dtype)
        return self.workgroup("shared_array", type, one.name, one.size)

    def stored(self, one: nodes.Store) -> str:
        """The statement that writes an element, or one per lane."""
        width = self.dialect.lanes if one.value.wide else 1
        at, value = self.index(one.at), self.text(one.value)
        if one.memory not in self._arguments:
            return self.dialect.private_store(width, one.memory, at, value, one.dtype)
        buffer = self.buffer(one.memory, one.dtype, written=True)
        return self.dialect.store(one.dtype, width, buffer, at, value)

    def workgroup(self, template: str, *given: object) -> str:
        """A template of the dialect's workgroup primitives, filled in."""
        assert self.dialect.workgroup is not None, f"{self.dialect.name} has no work-groups"
        return str(getattr(self.dialect.workgroup, template)).format(*given)

    def matrices(self, template: str, *given: object) -> str:
        """A template of the dialect's matrix instruction."""
        assert self.dialect.workgroup is not None and self.dialect.workgroup.mma is not None
        return str(getattr(self.dialect.workgroup.mma, template)).format(*given)

    def multiplied(self, one: nodes.Mma) -> str:
        """The statement of a matrix instruction."""
        assert self.dialect.workgroup is not None and self.dialect.workgroup.mma is not None
        names = (each.name for each in (*one.sums, *one.left, *one.right))
        return self.dialect.workgroup.mma.multiply[one.dtype.name].format(*names)

    def persistent(self, template: str, *given: object) -> str:
        """A template of the dialect's persistent primitives, filled in."""
        assert self.dialect.persistent is not None, f"{self.dialect.name} has no persistent kernels"
        return str(getattr(self.dialect.persistent, template)).format(*given)

    def address(self, memory: str, at: Index) -> str:
        """The text of the address of a counter."""
        return f"{memory} + {self.index(at)}" if at != ZERO else memory

    def called(self, one: nodes.Call) -> str:
        """The text that calls the function of a phase."""
        pointers = (
            self.dialect.pointer(Argument("", dtype, written))
            for dtype, written in zip(one.dtypes, one.written, strict=True)
        )
        buffers = (
            f"({pointer}){one.addresses}[{self.index(one.first + n)}]"
            for n, pointer in enumerate(pointers)
        )
        given = self.address(one.memory, one.at), self.text(one.workgroups), *buffers
        return f"{one.function}({', '.join(given)});"

    def addresses(self, one: nodes.Addresses) -> str:
        """The declaration of an array of addresses."""
        pointer = self.dialect.pointer(Argument("", U8, True))
        places = zip(one.memories, one.offsets, strict=True)
        each = (f"{memory} + {offset}" if offset else memory for memory, offset in places)
        return f"{pointer}const {one.name}[] = {{{', '.join(each)}}};"

    def rolled(self, header: str, rolled: bool) -> str:
        """The header of a loop, which compilers must not unroll where that is said."""
        return f"{self.dialect.no_unroll} {header}".strip() if rolled else header

    def bits_stored(self, one: nodes.StorePacked) -> str:
        """Nothing like it: what is like C has memory of every size."""
        raise AssertionError(f"{self.dialect.name} stores elements, not bits of words: {one}")

    def counted(self, one: nodes.For) -> str:
        """The header of a counted loop."""
        name, first, end = one.variable, self.text(one.first), self.text(one.end)
        return self.rolled(
            f"for (int {name} = {first}; {name} < {end}; {name} += {one.step})", one.rolled
        )

    def turned(self, one: nodes.While) -> str:
        """The header of any other loop."""
        name = one.variable.name
        first = f"{self.type(one.variable)} {name} = {self.text(one.first)}" if one.first else ""
        after = f"{name} = {self.text(one.after)}"
        return self.rolled(f"for ({first}; {self.condition(one.condition)}; {after})", one.rolled)


class LanePlaces(NamedTuple):
    """Elements of one memory: lane by lane the one at ``rest`` plus ``factor`` times ``of``."""

    memory: str
    of: Var
    factor: int
    rest: Index


def _places_of_lanes(parts: Sequence[Expr]) -> LanePlaces | None:
    """Where a gathered value's elements are, if places are the lanes of one variable."""
    found = {_place_of_lane(part, number) for number, part in enumerate(parts)}
    return found.pop() if len(found) == 1 else None


def _place_of_lane(part: Expr, number: int) -> LanePlaces | None:
    """Where the element of a lane is, if that is counted by the same lane of a variable."""
    if not isinstance(part, Read) or part.wide or part.base is not None:
        return None
    for atom, factor in part.index.terms.items():
        lane = atom.value if isinstance(atom, Dynamic) else None
        if isinstance(lane, Lane) and lane.number == number and not is_long(part.index):
            rest = part.index - Index({atom: factor})
            return LanePlaces(part.memory, lane.of, factor, rest)
    return None


Texts = Mapping[type, Callable[[Renderer, Any], str]]

TEXTS: Final[Texts] = {
    Const: lambda r, x: r.dialect.literal(x.dtype, x.value),
    Var: Renderer.variable,
    Hoisted: lambda r, x: r.text(x.of),
    Coordinate: Renderer.coordinate,
    Apply: Renderer.applied,
    Read: Renderer.read,
    Cell: lambda r, x: r.dialect.private_load(1, x.array, r.index(x.index)),
    Splat: lambda r, x: r.dialect.splat(x.dtype, r.dialect.lanes, r.text(x.of)),
    Gather: Renderer.gathered,
    Lane: lambda r, x: r.dialect.lane(r.text(x.of), x.number),
    ReduceLanes: lambda r, x: str(r.dialect.reduce_lanes(x.op, x.dtype, r.text(x.of))),
    ShuffleXor: lambda r, x: r.workgroup("shuffle_xor", x.of.name, x.bit),
    FetchAdd: lambda r, x: r.persistent("fetch_add", r.address(x.memory, x.index)),
    Poll: lambda r, x: r.persistent("poll", r.address(x.memory, x.index)),
    Word: lambda r, x: f"{x.of}.{'xyzw'[x.number]}",
}
"""How each expression is spelled."""

LINES: Final[Texts] = {
    nodes.Let: lambda r, s: f"const {r.type(s.variable)} {s.variable.name} = {r.text(s.value)};",
    nodes.Declare: Renderer.declared,
    nodes.Assign: lambda r, s: f"{s.variable.name} = {r.changed(s.variable, r.text(s.value))};",
    nodes.Array: Renderer.array,
    nodes.Store: Renderer.stored,
    nodes.LoadWords: lambda r, s: r.workgroup(
        "load_vector", s.name, r.buffer(s.memory, s.dtype), r.index(s.at)
    ),
    nodes.StoreWords: lambda r, s: r.workgroup(
        "store_vector", r.buffer(s.memory, s.dtype, True), r.index(s.at), *map(r.text, s.words)
    ),
    nodes.StorePacked: Renderer.bits_stored,
    nodes.Prefetch: lambda r, s: r.dialect.prefetch(
        r.buffer(s.memory, s.dtype), f"{r.index(s.at)} + {s.ahead}"
    ),
    nodes.Break: lambda r, s: "break;",
    nodes.Barrier: lambda r, s: r.workgroup("barrier"),
    nodes.LoadMatrices: lambda r, s: r.matrices(
        "load_matrix_transposed" if s.across else "load_matrix",
        *(one.name for one in s.variables),
        s.array,
        r.index(s.at),
    ),
    nodes.Mma: Renderer.multiplied,
    nodes.AsyncCopy: lambda r, s: r.matrices(
        "async_copy", s.array, r.index(s.to), r.buffer(s.memory, U32), r.index(s.at)
    ),
    nodes.AsyncWait: lambda r, s: r.matrices("async_wait"),
    nodes.Signal: lambda r, s: r.persistent("signal", r.address(s.memory, s.at), r.text(s.by)),
    nodes.Fence: lambda r, s: r.persistent("fence"),
    nodes.Yield: lambda r, s: r.persistent("yield_thread"),
    nodes.Addresses: Renderer.addresses,
    nodes.Call: Renderer.called,
}
"""How each statement without a body is spelled; nothing where a dialect has no words for a hint."""

Parts = Iterable[tuple[str, tuple[nodes.Statement, ...]]]


def _branches(r: Renderer, one: nodes.If) -> Parts:
    yield f"if ({r.condition(one.condition)})", one.body
    rest, word = one.otherwise, "else"
    while rest is not None and len(rest) == 1 and isinstance(rest[0], nodes.If):
        yield f"else if ({r.condition(rest[0].condition)})", rest[0].body
        rest = rest[0].otherwise
    if rest is not None:
        yield word, rest


def _cases(r: Renderer, one: nodes.Switch) -> Parts:
    word, value = "if", r.text(one.value)
    for number, body in zip(one.numbers, one.bodies, strict=True):
        yield f"{word} ({value} == {number})", body
        word = "else if"


BLOCKS: Final[Mapping[type, Callable[[Renderer, Any], Parts]]] = {
    nodes.For: lambda r, s: [(r.counted(s), s.body)],
    nodes.While: lambda r, s: [(r.turned(s), s.body)],
    nodes.If: _branches,
    nodes.Scope: lambda r, s: [("", s.body)],
    nodes.Switch: _cases,
}
"""The headers of each statement with bodies, and what stands behind each."""
