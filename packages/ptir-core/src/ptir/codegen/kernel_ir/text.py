"""**The text form of kernels**: statements and expressions as they are, in no language.

    for i, 0:i32, 64:i32, 1, {
      let t1:f32, read(f32, b0, [item:4*64 + i:64])
      store f32, b1, [item:4*64 + i:64], mul(f32, t1:f32, 2.0:f32)
    }

A node is the name of its record and the record's fields in order. A field that has a default goes
by its name, and is left out where it is at it. ``SLOTS`` says how a field of each type is written
and read, so a new node needs nothing here. What stands in every line is short: a variable and a
literal have their type behind them, a scalar op goes by its own name, and an index is a sum, in
which a loop variable has the size of its loop behind it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import SCALAR_OPS, Apply, Const, Expr, Var
from ptir.codegen.expressions.index import Atom, Axis, Dynamic, Index, Quotient, Remainder
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.render import TEXTS
from ptir.ir.attributes import float_text
from ptir.ir.parser import read_float
from ptir.ir.tokens import FLOAT, NAN, Reader
from ptir.types import DTYPES, DType

Block = tuple[nodes.Statement, ...]
STATEMENTS: Final = {kind.__name__.lower(): kind for kind in get_args(nodes.Statement)}
"""Every statement by the name that it goes by."""
EXPRESSIONS: Final = {k.__name__.lower(): k for k in TEXTS if k not in (Apply, Const, Var)}
"""Every expression that has no short form."""
T = TypeVar("T")


class Body(NamedTuple):
    """All that a kernel's text says: what ``KernelCode`` holds."""

    arguments: tuple[Argument, ...]
    preamble: Block
    body: Block


def printed(kernel: Body) -> str:
    """A kernel: a line per argument, the preamble, the same for all workgroups, and the body."""
    arguments = (f"argument {_fields(one, 0)}" for one in kernel.arguments)
    preamble, body = _block(kernel.preamble, 0), _block(kernel.body, 0)
    return "\n".join((*arguments, f"preamble {preamble}", f"body {body}"))


def line(statement: nodes.Statement) -> str:
    """A statement in one line, without the statements inside."""
    return re.sub(r"\{\n.*\}", "{ ... }", _statement(statement, 0), flags=re.DOTALL)


def parsed(text: str) -> Body:
    """What was printed; else a ``VerifyError`` that names line, token and what is expected.

    Equal nodes of the compilation that is going on are the same objects.
    """
    return KernelReader(text).kernel()


def _name(kind: type) -> str:
    """What a record goes by."""
    return kind.__name__.lower()


# --- fields ---


@dataclass(frozen=True)
class Slot:
    """How a field of one type is written, given the depth of its line, and read."""

    shown: Callable[[Any, int], str]
    read: Callable[[KernelReader], Any]


@dataclass(frozen=True)
class Field:
    """A field of a record: its name, its slot, and what it is where it is left out."""

    name: str
    slot: Slot
    default: Any
    repeated: bool
    """Whether it is any number of values, one after the other."""

    @property
    def is_named(self) -> bool:
        """Whether it goes by its name."""
        return self.default is not inspect.Parameter.empty


@cache
def fields_of(kind: Any) -> tuple[Field, ...]:
    """The fields of a record in order: what it is made of."""
    maker: Any = kind
    if not issubclass(kind, tuple):  # whose annotations stand at the class
        maker = kind.__init__ if kind.__new__ is object.__new__ else kind.__new__
    hints = get_type_hints(maker)
    return tuple(
        Field(one.name, _slot(hints[one.name]), one.default, one.kind is one.VAR_POSITIONAL)
        for one in inspect.signature(kind).parameters.values()
    )


def _slot(hint: Any) -> Slot:
    """The slot of a type: a row of the table, or several of one, or one that may be missing."""
    if hint in SLOTS:
        return SLOTS[hint]
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        return _several(_slot(inner[0]))
    assert get_origin(hint) in (Union, UnionType) and type(None) in inner, f"no slot for {hint}"
    return _optional(_slot(next(each for each in inner if each is not type(None))))


def _several(one: Slot) -> Slot:
    return Slot(
        lambda found, depth: f"({', '.join(one.shown(each, depth) for each in found)})",
        lambda reader: reader.several(one.read),
    )


def _optional(one: Slot) -> Slot:
    return Slot(
        lambda found, depth: "none" if found is None else one.shown(found, depth),
        lambda reader: None if reader.accept("none") else one.read(reader),
    )


# --- printing ---


def _fields(record: Any, depth: int = 0) -> str:
    """The fields of a record, without those that are at their default."""
    kind: Any = type(record)
    shown: list[str] = []
    for field in fields_of(kind):
        found = getattr(record, field.name)
        if field.repeated:
            shown += (field.slot.shown(one, depth) for one in found)
        elif not field.is_named:
            shown.append(field.slot.shown(found, depth))
        elif found != field.default:
            shown.append(f"{field.name}={field.slot.shown(found, depth)}")
    return ", ".join(shown)


def _block(body: Block, depth: int) -> str:
    """Statements in braces, one a line."""
    inner = "".join(f"{'  ' * (depth + 1)}{_statement(one, depth + 1)}\n" for one in body)
    return f"{{\n{inner}{'  ' * depth}}}"


def _statement(one: nodes.Statement, depth: int) -> str:
    return f"{_name(type(one))} {_fields(one, depth)}".rstrip()


def _expression(one: Expr) -> str:
    match one:
        case Var():
            return f"{one.name}:{one.dtype}{' wide' if one.wide else ''}"
        case Const():
            value = float_text(one.value) if isinstance(one.value, float) else str(int(one.value))
            return f"{value}:{one.dtype}"
        case Apply():
            return f"{one.op}({', '.join((str(one.dtype), *map(_expression, one.args)))})"
    return f"{_name(type(one))}({_fields(one)})"


def _index(index: Index) -> str:
    terms = [_atom(a) + (f"*{n}" if n != 1 else "") for a, n in index.terms.items()]
    if index.constant or not terms:
        terms.append(str(index.constant))
    return f"[{' + '.join(terms)}]"


def _atom(atom: Atom) -> str:
    match atom:
        case Axis():
            return f"{atom.name}:{atom.size}"
        case Dynamic():
            return f"({_expression(atom.value)} in {atom.low} to {atom.high})"
    return f"({_index(atom.of)}{'/' if isinstance(atom, Quotient) else '%'}{atom.by})"


# --- reading ---


class KernelReader(Reader):
    """Reads the text of one kernel."""

    table = re.compile(
        "|".join(
            f"(?P<{kind}>{pattern})"
            for kind, pattern in (
                ("space", r"(?:\s|#[^\n]*)+"),
                ("float", rf"{NAN}|{FLOAT}|inf\b"),
                ("int", r"-?[0-9]+"),
                ("name", r"[A-Za-z_]\w*"),
                ("mark", r"[(){}\[\]=:,+*/%]"),
            )
        )
    )

    def kernel(self) -> Body:
        """All of the text."""
        arguments: list[Argument] = []
        while self.accept("argument"):
            arguments.append(self.record(Argument))
        self.expect("preamble")
        preamble = self.block()
        self.expect("body")
        body = self.block()
        if self.token.kind != "end":
            raise self.expected("the end of the text behind the kernel")
        return Body(tuple(arguments), preamble, body)

    def block(self) -> Block:
        """Statements in braces."""
        self.expect("{")
        found: list[nodes.Statement] = []
        while not self.accept("}"):
            found.append(self.record(self.one_of(STATEMENTS, "'}' or a statement")))
        return tuple(found)

    def record(self, kind: Callable[..., T]) -> T:
        """The fields of a record."""
        found: list[Any] = []
        for field in fields_of(kind):
            if field.is_named:
                continue
            if found:
                self.expect(",")
            found.append(field.slot.read(self))
            while field.repeated and self.accept(","):
                found.append(field.slot.read(self))
        left = {field.name: field.slot for field in fields_of(kind) if field.is_named}
        named: dict[str, Any] = {}
        while left and self.accept(","):
            name = self.one_of({name: name for name in left}, "a field")
            self.expect("=")
            named[name] = left.pop(name).read(self)
        return kind(*found, **named)

    def one_of(self, table: Mapping[str, T], what: str) -> T:
        """The row of the name that comes next."""
        if self.token.kind != "name" or self.token.text not in table:
            raise self.expected(f"{what} ({', '.join(table)})")
        return table[self.advance().text]

    def several(self, read: Callable[[KernelReader], T]) -> tuple[T, ...]:
        """Any number of one kind, in parentheses."""
        self.expect("(")
        return tuple(self.listed(lambda: read(self), ")"))

    def name(self) -> str:
        """A name."""
        return self.take("name", "a name").text

    def integer(self) -> int:
        """A whole number."""
        return int(self.take("int", "a whole number").text)

    def dtype(self) -> DType:
        """An element type."""
        return self.one_of(DTYPES, "an element type")

    def truth(self) -> bool:
        """True or false."""
        return self.one_of({"true": True, "false": False}, "a truth value")

    def number(self) -> float | int:
        """The number of a literal."""
        token = self.token
        with self.at(token):
            return read_float(self.advance().text) if token.kind == "float" else self.integer()

    def variable(self) -> Var:
        """A variable with its type."""
        name = self.take("name", "a variable such as x:f32").text
        self.expect(":")
        return Var(self.dtype(), name, self.accept("wide"))

    def expression(self) -> Expr:
        """Any value."""
        if self.token.kind in ("int", "float"):
            value = self.number()
            self.expect(":")
            return Const(self.dtype(), value)
        token = self.take("name", "a value such as x:f32, 2.0:f32 or add(f32, x:f32, y:f32)")
        if self.accept(":"):
            return Var(self.dtype(), token.text, self.accept("wide"))
        kind = EXPRESSIONS.get(token.text)
        if kind is None and token.text not in SCALAR_OPS:
            known = ", ".join((*EXPRESSIONS, *sorted(SCALAR_OPS)))
            raise self.error(token.offset, f"expected a value ({known}), found {token.text!r}")
        self.expect("(")
        made = self.scalar_op(token.text) if kind is None else self.record(kind)
        self.expect(")")
        return made

    def scalar_op(self, op: str) -> Expr:
        """What stands in the parentheses of an op: the type of its result, and operands."""
        dtype, operands = self.dtype(), list[Expr]()
        while self.accept(","):
            operands.append(self.expression())
        return Apply(dtype, op, *operands)

    def index(self) -> Index:
        """A sum of atoms, each once, and a number."""
        self.expect("[")
        terms, constant = dict[Atom, int](), 0
        while True:
            token = self.token
            if token.kind == "int":
                constant += self.integer()
            else:
                atom = self.atom()
                if atom in terms:
                    raise self.error(token.offset, f"expected another term, found {_atom(atom)!r}")
                terms[atom] = self.integer() if self.accept("*") else 1
            if not self.accept("+"):
                break
        self.expect("]")
        return Index(terms, constant)

    def atom(self) -> Atom:
        """A loop variable and the size of its loop, a quotient, a remainder, a value."""
        if not self.accept("("):
            name = self.take("name", "a term of an index such as i:4, ([...]/4), (x:i32 in 0 to 3)")
            self.expect(":")
            return Axis(name.text, self.integer())
        if self.token.text != "[":
            value = self.expression()
            self.expect("in")
            low = self.integer()
            self.expect("to")
            made: Atom = Dynamic(value, low, self.integer())
        else:
            of = self.index()
            kind = Quotient if self.accept("/") else Remainder
            if kind is Remainder:
                self.expect("%")
            made = kind(of, self.integer())
        self.expect(")")
        return made


def _slot_of(shown: Callable[[Any], str], read: Callable[[KernelReader], Any]) -> Slot:
    return Slot(lambda found, depth: shown(found), read)


SLOTS: Final[Mapping[Any, Slot]] = {
    str: _slot_of(str, KernelReader.name),
    int: _slot_of(str, KernelReader.integer),
    bool: _slot_of(lambda found: "true" if found else "false", KernelReader.truth),
    DType: _slot_of(str, KernelReader.dtype),
    Var: _slot_of(_expression, KernelReader.variable),
    Expr: _slot_of(_expression, KernelReader.expression),
    Index: _slot_of(_index, KernelReader.index),
    Block: Slot(_block, KernelReader.block),
}
"""How the fields of each type are written and read."""
