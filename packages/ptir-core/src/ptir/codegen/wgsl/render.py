"""From a lowered kernel to WGSL: **tables** of how each statement and expression is spelled.

A kernel is an entry point with its buffers. Where it is serial, ``INVOCATIONS`` workgroups of its
are one of WGSL's; else each is one. A launch has as many as there are, in two dimensions where one
is too short; what is beyond the last does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ptir.backend.kernel import Argument, WholeKernel
from ptir.codegen.expressions.expr import Apply, Cell, Const, Coordinate, Expr, Var
from ptir.codegen.expressions.index import Index, is_long, spelled
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import Read, Word
from ptir.codegen.lowering.bindings import Binding, joined, layout
from ptir.codegen.lowering.rewriting import Body, Seen
from ptir.codegen.lowering.table import lowered
from ptir.codegen.lowering.vectors import elements, vectors
from ptir.codegen.wgsl.names import renamed, safe
from ptir.codegen.wgsl.ops import TYPES, applied, literal
from ptir.errors import UnsupportedError
from ptir.types import I32, DType

INVOCATIONS: Final = 64
"""Serial workgroups that are one of WGSL's, an invocation each."""
WIDEST: Final = 65535
"""Workgroups of a launch along one dimension."""


class Module(NamedTuple):
    """A kernel in WGSL: its text, its buffers in order, and the workgroups of a launch."""

    text: str
    bindings: tuple[Binding, ...]
    groups: tuple[int, int]


class Renderer:
    """Spells the statements of one lowered kernel."""

    def __init__(self, name: str, body: Body) -> None:
        self.name, self.body = name, body
        self._arguments = {argument.name for argument in body.arguments}
        statements = Seen(body).statements
        self.shared = [s for s in statements if isinstance(s, nodes.Array) and s.shared]
        self.atomic = {s.memory for s in statements if isinstance(s, nodes.StorePacked)}
        self.vectors = vectors(body) - elements(body)
        self._held = {argument.name: argument.dtype for argument in body.arguments}
        self._held |= {s.name: s.dtype for s in statements if isinstance(s, nodes.Array)}
        self._modular = self._arguments | {array.name for array in self.shared}

    # --- module scope ---

    def declarations(self) -> Iterable[str]:
        """The declarations of buffers and of what workgroups share."""
        for number, argument in enumerate(self.body.arguments):
            access = "read_write" if argument.written else "read"
            of = self.element(argument.name, TYPES[argument.dtype])
            where = f"@group(0) @binding({number}) var<storage, {access}>"
            yield f"{where} {self.memory(argument.name)}: array<{of}>;"
        for array in self.shared:
            of = self.element(array.name, TYPES[array.dtype])
            yield f"var<workgroup> {self.memory(array.name)}: array<{of}, {array.size}>;"

    def element(self, memory: str, kind: str) -> str:
        """The type of the elements that a memory holds."""
        if memory in self.vectors:
            return f"vec4<{kind}>"
        return f"atomic<{kind}>" if memory in self.atomic else kind

    def memory(self, name: str) -> str:
        """A memory: names of a module belong to the kernel."""
        return f"{self.name}_{name}" if name in self._modular else safe(name)

    # --- statements ---

    def lines(self, statements: Iterable[nodes.Statement], depth: int) -> Iterable[str]:
        """The lines of statements, indented."""
        begin = "  " * depth
        for one in statements:
            block = BLOCKS.get(type(one))
            if block is None:
                yield from (f"{begin}{line}" for line in LINES[type(one)](self, one))
                continue
            for header, body in block(self, one):
                yield f"{begin}{header}{{"
                yield from self.lines(body, depth + 1)
                yield f"{begin}}}"

    def declared(self, one: nodes.Declare) -> Iterable[str]:
        """The declaration of variables that change."""
        values = [f" = {self.text(value)}" for value in one.values] or [""] * len(one.variables)
        for variable, value in zip(one.variables, values, strict=True):
            yield f"var {safe(variable.name)}: {TYPES[variable.dtype]}{value};"

    def array(self, one: nodes.Array) -> Iterable[str]:
        """An array that a thread has to itself; others stand in front of the kernel."""
        if one.numbers:
            numbers = ", ".join(f"{number}u" for number in one.numbers)
            yield f"const {safe(one.name)} = array<{TYPES[one.dtype]}, {one.size}>({numbers});"
        elif not one.shared:
            yield f"var {safe(one.name)}: array<{TYPES[one.dtype]}, {one.size}>;"

    def stored(self, one: nodes.Store) -> Iterable[str]:
        """The statement that writes an element."""
        place, value = self.element_at(one.memory, one.dtype, one.at), self.text(one.value)
        atomic = one.memory in self.atomic
        yield f"atomicStore(&{place}, {value});" if atomic else f"{place} = {value};"

    def bits_stored(self, one: nodes.StorePacked) -> Iterable[str]:
        """Bits are cleared, then set: others' bits are never touched."""
        place = f"&{self.memory(one.memory)}[{self.index(one.at)}]"
        yield f"atomicAnd({place}, ~{self.text(one.mask)});"
        yield f"atomicOr({place}, {self.text(one.bits)});"

    def words(self, one: nodes.LoadWords) -> Iterable[str]:
        """The statement that loads 16 bytes of a memory of such."""
        place = f"{self.memory(one.memory)}[{self.index(one.at // 4)}]"
        text = place if TYPES[one.dtype] == "u32" else f"bitcast<vec4<u32>>({place})"
        yield f"let {safe(one.name)} = {text};"

    def words_stored(self, one: nodes.StoreWords) -> Iterable[str]:
        """The statement that writes 16 bytes to a memory of such."""
        place = f"{self.memory(one.memory)}[{self.index(one.at // 4)}]"
        words = f"vec4<u32>({', '.join(map(self.text, one.words))})"
        kind = TYPES[one.dtype]
        yield f"{place} = {words if kind == 'u32' else f'bitcast<vec4<{kind}>>({words})'};"

    def counted(self, one: nodes.For) -> str:
        """The header of a counted loop."""
        name, first, end = safe(one.variable), self.text(one.first), self.text(one.end)
        return f"for (var {name}: i32 = {first}; {name} < {end}; {name} += {one.step}i) "

    def turned(self, one: nodes.While) -> str:
        """The header of any other loop."""
        name, kind = safe(one.variable.name), TYPES[one.variable.dtype]
        first = "" if one.first is None else f"var {name}: {kind} = {self.text(one.first)}"
        after = f"{name} = {self.text(one.after)}"
        return f"for ({first}; {self.text(one.condition)}; {after}) "

    # --- expressions ---

    def text(self, expr: Expr) -> str:
        """The text of an expression."""
        return TEXTS[type(expr)](self, expr)

    def index(self, index: Index) -> str:
        """The text of an index, as an i32."""
        if is_long(index):
            raise UnsupportedError(
                f"WGSL counts elements in 32 bits, and a kernel reads at places up to {index.high}:"
                " cut the tensor into parts of fewer elements"
            )
        return spelled(renamed(index), self._whole, "i32")

    def _whole(self, expr: Expr) -> str:
        """The text of a value as a part of an index."""
        text = self.text(expr)
        return text if expr.dtype == I32 else applied("convert", I32, expr.dtype, [text])

    def applied(self, expr: Apply) -> str:
        """The text of a scalar op."""
        of = expr.args[1 if expr.op == "select" else 0].dtype
        return applied(expr.op, expr.dtype, of, [self.text(arg) for arg in expr.args])

    def element_at(self, memory: str, dtype: DType, index: Index) -> str:
        """The place of an element: of the one type that the memory has."""
        held = self._held[memory]
        assert dtype == held, f"{memory} holds {held} and is taken for {dtype}"
        return f"{self.memory(memory)}[{self.index(index)}]"

    def read(self, memory: str, dtype: DType, index: Index) -> str:
        """The text that reads an element."""
        place = self.element_at(memory, dtype, index)
        return f"atomicLoad(&{place})" if memory in self.atomic else place


Texts = Mapping[type, Callable[[Renderer, Any], str]]
Lines = Mapping[type, Callable[[Renderer, Any], Iterable[str]]]
Blocks = Iterable[tuple[str, Sequence[nodes.Statement]]]

TEXTS: Final[Texts] = {
    Const: lambda r, x: literal(x.dtype, x.value),
    Var: lambda r, x: safe(x.name),
    Coordinate: lambda r, x: applied("convert", x.dtype, I32, [r.index(x.index)]),
    Apply: Renderer.applied,
    Read: lambda r, x: r.read(x.memory, x.dtype, x.index),
    Cell: lambda r, x: r.read(x.array, x.dtype, x.index),
    Word: lambda r, x: f"{safe(x.of)}.{'xyzw'[x.number]}",
}
"""How each expression is spelled that lowering leaves."""

LINES: Final[Lines] = {
    nodes.Let: lambda r, s: [
        f"let {safe(s.variable.name)}: {TYPES[s.variable.dtype]} = {r.text(s.value)};"
    ],
    nodes.Declare: Renderer.declared,
    nodes.Assign: lambda r, s: [f"{safe(s.variable.name)} = {r.text(s.value)};"],
    nodes.Array: Renderer.array,
    nodes.Store: Renderer.stored,
    nodes.StorePacked: Renderer.bits_stored,
    nodes.LoadWords: Renderer.words,
    nodes.StoreWords: Renderer.words_stored,
    nodes.Break: lambda r, s: ["break;"],
    nodes.Barrier: lambda r, s: ["storageBarrier();", "workgroupBarrier();"],
}
"""How each statement without a body is spelled that lowering leaves."""


def _branches(r: Renderer, one: nodes.If) -> Blocks:
    yield f"if ({r.text(one.condition)}) ", one.body
    if one.otherwise is not None:
        yield "else ", one.otherwise


BLOCKS: Final[Mapping[type, Callable[[Renderer, Any], Blocks]]] = {
    nodes.For: lambda r, s: [(r.counted(s), s.body)],
    nodes.While: lambda r, s: [(r.turned(s), s.body)],
    nodes.If: _branches,
    nodes.Scope: lambda r, s: [("", s.body)],
}
"""The headers of each statement with bodies, and what stands behind each."""


def module(
    name: str,
    statements: Sequence[nodes.Statement],
    arguments: Sequence[Argument],
    workgroups: int,
    workgroup_size: int,
    lacks: Iterable[str],
    most: int,
) -> Module:
    """A kernel with at most ``most`` buffers; raises ``UnsupportedError`` where it cannot be."""
    given = Body(tuple(statements), tuple(arguments))
    plain = lowered(given, frozenset(lacks))
    names = joined(plain, most)
    body = lowered(plain, (), most)
    groups = -(-workgroups // INVOCATIONS) if workgroup_size == 1 else workgroups
    wide = max(1, min(groups, WIDEST))
    text = written(name, body, workgroups, workgroup_size)
    return Module(text, layout(body, names), (wide, -(-groups // wide)))


def written(name: str, body: Body, workgroups: int, workgroup_size: int) -> str:
    """The text of a lowered kernel; serial kernels have ``INVOCATIONS`` threads a workgroup."""
    r = Renderer(name, body)
    size, numbers = (INVOCATIONS, ALONE) if workgroup_size == 1 else (workgroup_size, TOGETHER)
    lines = [*r.declarations(), f"@compute @workgroup_size({size})", HEADER.format(name)]
    lines += [f"  {line}" for line in numbers.format(size).splitlines()]
    lines += [f"  if (item < {workgroups}i) {{", *r.lines(body.statements, 2), "  }", "}"]
    return "\n".join(lines)


HEADER: Final = (
    "fn {}(@builtin(workgroup_id) of_group: vec3<u32>, @builtin(num_workgroups) of_groups:"
    " vec3<u32>, @builtin(local_invocation_id) of_member: vec3<u32>) {{"
)
"""An entry point up to its body."""
ALONE: Final = "let item: i32 = i32((of_group.x + of_group.y * of_groups.x) * {}u + of_member.x);"
TOGETHER: Final = """\
let item: i32 = i32(of_group.x + of_group.y * of_groups.x);
let member: i32 = i32(of_member.x);"""
"""The numbers that a body finds."""


def module_of(kernel: WholeKernel, name: str, lacks: Iterable[str], most: int) -> Module:
    """The module of a kernel: lowered, its text, its buffers and its launch."""
    given = kernel.statements, kernel.arguments, kernel.workgroups, kernel.workgroup_size
    return module(name, *given, lacks, most)
