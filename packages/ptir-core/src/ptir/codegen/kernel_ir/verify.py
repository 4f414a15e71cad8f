"""**What a legal kernel is**: types, scopes, memories, bounds, barriers, said before any compiler.

``faults`` goes through a kernel's statements once and gives every rule that is broken. ``TYPED``
says what the operands and the result of each scalar op may be; ``CHECKS`` has a row per statement.
Where an index lies follows from the ranges of its loop variables (``Axis``), narrowed by what the
kernel itself says: ends of loops, values of variables that do not change, conditions around it.
What is computed from a member's number is *varying*: a barrier, an exchange of values or a matrix
instruction under a condition or in a loop of that kind would wait for members that never come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Var, carrier
from ptir.codegen.expressions.index import Atom, Axis, Dynamic, Index, Quotient
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.render import RELATIONS
from ptir.codegen.kernel_ir.text import line
from ptir.codegen.kernel_ir.values import (
    Claim,
    Exchange,
    Fold,
    Gather,
    Here,
    Lane,
    Read,
    Seen,
    Splat,
    Word,
)
from ptir.types import BOOL, F32, I32, U32, DType

Types = Sequence[DType]


def _alike(result: DType, given: Types) -> bool:
    """Operands and result of one type."""
    return all(one == result for one in given)


TYPED: Final[Mapping[str, Callable[[DType, Types], bool]]] = {
    **dict.fromkeys(RELATIONS, lambda result, given: result == BOOL and _alike(given[0], given)),
    "select": lambda result, given: given[0] == BOOL and _alike(result, given[1:]),
    "convert": lambda result, given: True,
    "bits": lambda result, given: (
        carrier(result).bits == carrier(given[0]).bits or result.bits == given[0].bits
    ),
    "narrow": lambda result, given: carrier(result) == carrier(given[0]) == F32,
    "nearest": lambda result, given: result == I32 and given[0] == F32,
    "dot_bytes": lambda result, given: [result, *given] == [I32, I32, U32, U32],
    "dot_bf16": lambda result, given: [result, *given] == [F32, F32, U32, U32],
}
"""By op: whether it may have operands of these types. Of all others they are of one type."""

OPERANDS: Final = {"select": 3, "fma": 3, "dot_bytes": 3, "dot_bf16": 3}
UNARY: Final = frozenset(
    (
        *("neg", "abs", "not", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos"),
        *("tanh", "erf", "floor", "ceil", "round", "convert", "bits", "narrow", "nearest"),
    )
)
HUGE: Final = 1 << 62
"""Beyond every number of an index."""
MIXED: Final = frozenset(("dot_bytes", "dot_bf16"))
"""Ops that take a scalar beside wide operands."""


Range = tuple[int, int]
"""The least and the greatest value of a whole number."""


@dataclass(frozen=True)
class Fault:
    """A rule that a kernel breaks, as a sentence, and the innermost statement that does."""

    rule: str
    statement: nodes.Statement | None = None
    """None where it is none alone."""

    def __str__(self) -> str:
        return self.rule + (f", in `{line(self.statement)}`" if self.statement else "")


@dataclass
class _Known:
    """A name in scope: its variable, whether it may change, and whether members differ in it."""

    variable: Var
    changes: bool
    varying: bool
    range: Range | None = None
    """Where a whole number is known to lie."""
    counted: bool = False
    """Whether it takes every number of its range, as a loop variable between literals does."""


class _Verifier:
    """A walk through one kernel."""

    def __init__(
        self, arguments: Iterable[Argument], members: int, lanes: int, nbytes: Mapping[str, int]
    ) -> None:
        self._arguments = {argument.name: argument for argument in arguments}
        self._members, self._lanes, self._nbytes = members, lanes, nbytes
        begun = [Var(I32, "item")] + [Var(I32, "member")] * (members > 1)
        self._scopes = [{v.name: _Known(v, False, v.name == "member") for v in begun}]
        self._arrays: dict[str, nodes.Array] = {}
        self._words: set[str] = set()
        self._addresses: dict[str, int] = {}
        self._used: set[str] = set()
        self._loops = 0
        self._diverged = False
        self._statement: nodes.Statement | None = None
        self.found: dict[str, Fault] = {}

    def wrong(self, said: str) -> None:
        """Note a rule that is broken, once."""
        self.found.setdefault(said, Fault(said, self._statement))

    def kernel(self, statements: Iterable[nodes.Statement]) -> None:
        """All of it."""
        self.block(statements)
        self._statement = None
        for name in self._arguments.keys() - self._used:
            self.wrong(f"argument {name} is never read or written")

    def block(self, statements: Iterable[nodes.Statement]) -> None:
        """Statements in order."""
        for one in statements:
            self._statement = one
            CHECKS[type(one)](self, one)

    # --- scopes ---

    @contextmanager
    def nested(self, varying: bool = False, loop: bool = False) -> Iterator[None]:
        """A block; ``varying`` where only some members may come."""
        before, self._diverged = self._diverged, self._diverged or varying
        self._scopes.append({})
        self._loops += loop
        yield
        self._loops -= loop
        self._scopes.pop()
        self._diverged = before

    def known(self, name: str) -> _Known | None:
        """What a name is here."""
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def declare(self, variable: Var, changes: bool, varying: bool) -> None:
        """A name from here on."""
        if variable.name in self._scopes[-1]:
            self.wrong(f"{variable.name} is declared twice in a block")
        known = _Known(variable, changes, varying or (changes and self._diverged))
        self._scopes[-1][variable.name] = known

    def read(self, variable: Var) -> bool:
        """A variable is read; whether it varies."""
        known = self.known(variable.name)
        if known is None:
            self.wrong(f"{variable.name} is read and not declared")
            return False
        if known.variable != variable:
            was, now = _shown(known.variable), _shown(variable)
            self.wrong(f"{variable.name} is declared as {was} and read as {now}")
        return known.varying

    # --- ranges ---

    def bounds(self, index: Index) -> Range:
        """Where an index lies here."""
        low = high = index.constant
        for atom, factor in index.terms.items():
            least, most = (factor * end for end in self._range(atom))
            low, high = low + min(least, most), high + max(least, most)
        return low, high

    def _range(self, atom: Atom) -> Range:
        if isinstance(atom, Axis | Dynamic):
            if isinstance(atom, Dynamic):
                return _both(atom.bounds, self.number(atom.value))
            known = self.known(atom.name)
            found = None if known is None else known.range
            if found is not None and known is not None and known.counted and found[1] >= atom.size:
                self.wrong(f"{atom.name} goes up to {found[1]}, and is taken for below {atom.size}")
            return _both(atom.bounds, found)
        low, high = self.bounds(atom.of)
        if isinstance(atom, Quotient):
            return low // atom.by, high // atom.by
        return (low, high) if low >= 0 and high < atom.by else (0, atom.by - 1)

    def _named(self, name: str) -> Range | None:
        known = self.known(name)
        return None if known is None else known.range

    def number(self, expr: Expr | None) -> Range | None:
        """Where a whole number lies; None where that is not known."""
        match expr:
            case Const() if not expr.dtype.is_float:
                return int(expr.value), int(expr.value)
            case Coordinate():
                return self.bounds(expr.index)
            case Var():
                return self._named(expr.name)
            case Here():
                return self.number(expr.of)
            case Apply() if expr.op in ("min", "max"):
                return self._extreme(expr)
        return None

    def _extreme(self, expr: Apply) -> Range | None:
        ends = [self.number(one) for one in expr.args]
        known = [one for one in ends if one is not None]
        if len(known) < 2:
            return None
        take = min if expr.op == "min" else max
        return take(one[0] for one in known), take(one[1] for one in known)

    def narrow(self, condition: Expr) -> None:
        """In the innermost block a condition holds: names that are below something are."""
        if not isinstance(condition, Apply):
            return
        if condition.op == "and":
            for one in condition.args:
                self.narrow(one)
        if condition.op not in ("lt", "le"):
            return
        below, limit = condition.args
        end = self.number(limit)
        name, moved = _place(below)
        known = self.known(name) if name else None
        if end is None or known is None:
            return
        most = end[1] - (condition.op == "lt") - moved
        least, before = known.range or (-HUGE, HUGE)
        self._scopes[-1][name] = replace(known, range=(least, min(before, most)))

    def _is_unreached(self) -> bool:
        """Whether conditions around contradict each other, or a loop around has no turn."""
        known = (one for scope in self._scopes for one in scope.values())
        return any(one.range is not None and one.range[0] > one.range[1] for one in known)

    # --- expressions: each says whether it varies ---

    def value(self, expr: Expr) -> bool:
        """An expression is computed."""
        return VALUES[type(expr)](self, expr)

    def scalar(self, expr: Expr, dtype: DType, what: str) -> bool:
        """An expression that must be one value of a type."""
        if expr.wide or expr.dtype != dtype:
            self.wrong(f"{what} is {_shown(expr)}; it must be {dtype}")
        return self.value(expr)

    def index(self, index: Index) -> bool:
        """An index is computed."""
        return any([self._atom(atom) for atom in index.terms])

    def _atom(self, atom: Atom) -> bool:
        if isinstance(atom, Axis):
            return self.read(Var(I32, atom.name))
        if isinstance(atom, Dynamic):
            if atom.value.wide or not atom.value.dtype.is_integer:
                self.wrong(f"an index holds {_shown(atom.value)}; it must be one integer")
            return self.value(atom.value)
        return self.index(atom.of)

    def place(self, memory: str, dtype: DType, at: Index, count: int, written: bool) -> bool:
        """Elements of a memory are read or written; whether where varies."""
        verb = "written" if written else "read"
        argument, array = self._arguments.get(memory), self._arrays.get(memory)
        self._used.add(memory)
        if argument is not None and written and not argument.written:
            self.wrong(f"argument {memory} is written, and is not declared so")
        if argument is None and array is None:
            self.wrong(f"{memory} is {verb}, and is neither an argument nor an array")
        nbytes = self._nbytes.get(memory)
        if array is not None:
            nbytes = array.size * max(4, array.dtype.itemsize)
        size = None if nbytes is None else nbytes // dtype.itemsize
        low, high = self.bounds(at)
        beyond = low < 0 or (size is not None and high + count > size)
        if beyond and not self._is_unreached():
            span = f"{low} to {high + count - 1}"
            of = "" if size is None else f" of {size} elements"
            self.wrong(f"{memory}{of} is {verb} at {span} ({at!r})")
        return self.index(at)

    def applied(self, expr: Apply) -> bool:
        """A scalar op."""
        varying = any([self.value(one) for one in expr.args])
        wanted = OPERANDS.get(expr.op, 1 if expr.op in UNARY else 2)
        given = [one.dtype for one in expr.args]
        text = f"{expr.op}({', '.join(map(_shown, expr.args))}) -> {_shown(expr)}"
        if len(given) != wanted:
            self.wrong(f"{text}: {wanted} operands are expected")
        elif not TYPED.get(expr.op, _alike)(expr.dtype, given):
            self.wrong(f"{text}: these types do not go together")
        if expr.wide and expr.op not in MIXED and not all(one.wide for one in expr.args):
            self.wrong(f"{text}: scalars and wide values in one op; a scalar needs a splat")
        return varying

    def lane(self, expr: Lane) -> bool:
        """One lane."""
        if not expr.of.wide or not 0 <= expr.number < self._lanes:
            self.wrong(f"lane {expr.number} of {_shown(expr.of)}, which has {self._lanes} lanes")
        return self.read(expr.of)

    def gathered(self, expr: Gather) -> bool:
        """A scalar per lane."""
        if len(expr.parts) != self._lanes:
            self.wrong(f"{len(expr.parts)} scalars are gathered into {self._lanes} lanes")
        for one in expr.parts:
            if one.wide or one.dtype != expr.dtype:
                self.wrong(f"{_shown(one)} is gathered into {expr.dtype}")
        return any([self.value(one) for one in expr.parts])

    def exchanged(self, expr: Exchange) -> bool:
        """A value of another member."""
        self.together("an exchange of values")
        if expr.bit < 1 or expr.bit & (expr.bit - 1) or expr.bit >= self._members:
            self.wrong(f"members exchange across {expr.bit}: no power of two below their number")
        self.read(expr.of)
        return True

    def counter(self, expr: Claim | Seen) -> bool:
        """A counter that others change meanwhile."""
        self.place(expr.memory, I32, expr.index, 1, written=isinstance(expr, Claim))
        return True

    def word(self, expr: Word) -> bool:
        """A word of 16 bytes."""
        if expr.of not in self._words:
            self.wrong(f"{expr.of} names no 16 bytes")
        return True

    # --- statements ---

    def assigned(self, one: nodes.Assign) -> None:
        """A variable changes."""
        varying = self.value(one.value)
        known = self.known(one.variable.name)
        if known is None:
            return self.wrong(f"{one.variable.name} is assigned and not declared")
        if not known.changes:
            self.wrong(f"{one.variable.name} is assigned, and does not change")
        if known.variable != one.variable or not _fits(one.variable, one.value):
            was, now = _shown(known.variable), _shown(one.value)
            self.wrong(f"{one.variable.name} is {was} and is assigned {now}")
        self._changed(one.variable.name, varying or self._diverged)
        return None

    def _changed(self, name: str, varying: bool) -> None:
        """A variable has another value: what conditions said of it holds no more."""
        for scope in self._scopes:
            if name in scope:
                scope[name].range = None
                scope[name].varying = scope[name].varying or varying

    def declared(self, one: nodes.Declare) -> None:
        """Variables that change."""
        if one.values and len(one.values) != len(one.variables):
            self.wrong(f"{len(one.variables)} variables begin with {len(one.values)} values")
        for place, variable in enumerate(one.variables):
            value = one.values[place] if place < len(one.values) else None
            if value is not None and not _fits(variable, value):
                self.wrong(f"{variable.name} is {_shown(variable)}, begins with {_shown(value)}")
            self.declare(variable, True, value is not None and self.value(value))

    def let(self, one: nodes.Let) -> None:
        """A variable that does not change."""
        if not _fits(one.variable, one.value):
            shown = _shown(one.variable), _shown(one.value)
            self.wrong(f"{one.variable.name} is {shown[0]} and holds {shown[1]}")
        self.declare(one.variable, False, self.value(one.value))
        self._scopes[-1][one.variable.name].range = self.number(one.value)

    def array(self, one: nodes.Array) -> None:
        """An array of the kernel."""
        if one.name in self._arrays or one.name in self._arguments:
            self.wrong(f"{one.name} is declared twice")
        if one.shared and self._members == 1:
            self.wrong(f"array {one.name} is shared, and the kernel is not one of groups")
        self._arrays[one.name] = one

    def stored(self, one: nodes.Store) -> None:
        """Elements are written."""
        self.value(one.value)
        if one.memory in self._arguments and carrier(one.value.dtype) != carrier(one.dtype):
            self.wrong(f"{one.memory}: {_shown(one.value)} is stored as {one.dtype}")
        count = self._lanes if one.value.wide else 1
        self.place(one.memory, one.dtype, one.at, count, written=True)

    def words(self, one: nodes.LoadWords) -> None:
        """16 bytes are named."""
        self._words.add(one.name)
        self.begins_words(one.memory, one.dtype, one.at)
        self.place(one.memory, one.dtype, one.at, 4, written=False)

    def words_stored(self, one: nodes.StoreWords) -> None:
        """16 bytes are written."""
        for word in one.words:
            self.scalar(word, U32, "a word of 16 bytes")
        self.begins_words(one.memory, one.dtype, one.at)
        self.place(one.memory, one.dtype, one.at, len(one.words), written=True)

    def bits_stored(self, one: nodes.StoreBits) -> None:
        """Bits of a word change."""
        for word in (one.mask, one.bits):
            self.scalar(word, U32, "the bits of a word")
        self.place(one.memory, U32, one.at, 1, written=True)

    def counted(self, one: nodes.For) -> None:
        """A counted loop."""
        ends = [self.scalar(end, I32, "an end of a loop") for end in (one.first, one.end)]
        if one.step < 1:
            self.wrong(f"a loop of {one.variable} goes by {one.step}")
        first, end = self.number(one.first), self.number(one.end)
        within = (first[0], end[1] - 1) if first and end else None
        literal = isinstance(one.first, Const) and isinstance(one.end, Const)
        counted = literal and one.step == 1
        self._loop(Var(I32, one.variable), any(ends), one.body, within=within, counted=counted)

    def turned(self, one: nodes.While) -> None:
        """Any other loop."""
        varying = self.value(one.first) if one.first is not None else False
        if one.first is None:
            varying = self.read(one.variable)
        with self.nested():
            if one.first is not None:
                self.declare(one.variable, True, varying)
            varying |= self.scalar(one.condition, BOOL, "the condition of a loop")
            varying |= self.value(one.after)
            self._loop(None, varying, one.body, holds=one.condition)

    def _loop(
        self,
        variable: Var | None,
        varying: bool,
        body: Sequence[nodes.Statement],
        within: Range | None = None,
        holds: Expr | None = None,
        counted: bool = False,
    ) -> None:
        """A body is done several times: what its end makes varying is so when it begins again."""
        arrays = dict(self._arrays)
        for _ in range(2):
            self._arrays = dict(arrays)
            with self.nested(varying, loop=True):
                if variable is not None:
                    self.declare(variable, False, varying)
                    self._scopes[-1][variable.name].range = within
                    self._scopes[-1][variable.name].counted = counted
                if holds is not None:
                    self.narrow(holds)
                self.block(body)

    def branched(self, one: nodes.If) -> None:
        """A condition."""
        varying = self.scalar(one.condition, BOOL, "a condition")
        with self.nested(varying):
            self.narrow(one.condition)
            self.block(one.body)
        with self.nested(varying):
            self.block(one.otherwise or ())

    def announced(self, one: nodes.Announce) -> None:
        """A counter grows."""
        self.scalar(one.by, I32, "what a counter grows by")
        self.place(one.memory, I32, one.at, 1, written=True)

    def switched(self, one: nodes.Switch) -> None:
        """One of several bodies."""
        varying = self.scalar(one.value, I32, "the number of a body")
        if len(set(one.numbers)) != len(one.bodies):
            self.wrong(f"{len(one.bodies)} bodies have the numbers {one.numbers}")
        for body in one.bodies:
            with self.nested(varying):
                self.block(body)

    def addressed(self, one: nodes.Addresses) -> None:
        """Addresses of arguments."""
        for memory in one.memories:
            self._used.add(memory)
            if memory not in self._arguments:
                self.wrong(f"{memory} has no address: it is no argument")
        if len(one.memories) != len(one.offsets) or min(one.offsets, default=0) < 0:
            self.wrong(f"{one.name}: {one.memories} with offsets {one.offsets}")
        self._addresses[one.name] = len(one.memories)

    def called(self, one: nodes.Call) -> None:
        """A phase is called."""
        self.scalar(one.items, I32, "the items of a phase")
        self.place(one.memory, I32, one.at, 1, written=True)
        self.index(one.first)
        if one.addresses not in self._addresses:
            self.wrong(f"{one.addresses} holds no addresses")
        if len(one.dtypes) != len(one.written):
            self.wrong(f"{one.function} takes {len(one.dtypes)} or {len(one.written)} buffers")

    def scoped(self, one: nodes.Scope) -> None:
        """A block."""
        with self.nested():
            self.block(one.body)

    def left(self, one: nodes.Break) -> None:
        """A loop is left."""
        if not self._loops:
            self.wrong("a break stands in no loop")

    def together(self, what: str) -> None:
        """Something that all members of a group do together."""
        if self._members == 1:
            self.wrong(f"{what} stands in a kernel that is not one of groups")
        elif self._diverged:
            self.wrong(f"{what} stands where only some members may come")

    def gathering(self, one: nodes.GatherMatrices) -> None:
        """Matrices out of shared memory."""
        self.together("a gather of matrices")
        self.place(one.array, U32, one.at, 1, written=False)
        for variable in one.variables:
            self._written(variable)

    def multiplied(self, one: nodes.MultiplyMatrices) -> None:
        """A matrix instruction."""
        self.together("a matrix instruction")
        for variable in (*one.left, *one.right):
            self.read(variable)
        for variable in one.sums:
            self._written(variable)

    def _written(self, variable: Var) -> None:
        known = self.known(variable.name)
        if known is None or not known.changes:
            self.wrong(f"{variable.name} is written, and is no variable that changes")
        else:
            self._changed(variable.name, varying=True)

    def copied(self, one: nodes.CopyWords) -> None:
        """16 bytes to shared memory."""
        for memory, at, written in ((one.array, one.to, True), (one.memory, one.at, False)):
            self.begins_words(memory, U32, at)
            self.place(memory, U32, at, 4, written)

    def begins_words(self, memory: str, dtype: DType, at: Index) -> None:
        """An index is where 16 bytes begin."""
        each = 16 // dtype.itemsize
        if (at % each).bounds != (0, 0):
            self.wrong(f"16 bytes of {memory} are taken at {at!r}, which {each} may not divide")


def _both(a: Range, b: Range | None) -> Range:
    """What lies in both ranges."""
    return a if b is None else (max(a[0], b[0]), min(a[1], b[1]))


def _place(expr: Expr) -> tuple[str, int]:
    """The name whose value this is, and what is added to it; no name where it is no such thing."""
    if isinstance(expr, Var):
        return expr.name, 0
    if isinstance(expr, Coordinate) and len(expr.index.terms) == 1:
        ((atom, factor),) = expr.index.terms.items()
        if factor == 1 and isinstance(atom, Axis):
            return atom.name, expr.index.constant
        if factor == 1 and isinstance(atom, Dynamic) and isinstance(atom.value, Var):
            return atom.value.name, expr.index.constant
    return "", 0


def _fits(variable: Var, value: Expr) -> bool:
    """Whether a variable can hold a value: of one carrier, and as wide."""
    return carrier(variable.dtype) == carrier(value.dtype) and variable.wide == value.wide


def _shown(expr: Expr) -> str:
    """The type of a value."""
    return f"{expr.dtype}{' per lane' if expr.wide else ''}"


VALUES: Final[Mapping[type, Callable[[_Verifier, Any], bool]]] = {
    Const: lambda v, x: False,
    Var: _Verifier.read,
    Coordinate: lambda v, x: v.index(x.index),
    Apply: _Verifier.applied,
    Read: lambda v, x: v.place(
        x.memory, x.dtype, x.place, v._lanes if x.wide else 1, written=False
    ),
    Here: lambda v, x: v.scalar(x.of, x.dtype, "what is computed in place"),
    Splat: lambda v, x: v.scalar(x.of, x.dtype, "what is put into every lane"),
    Gather: _Verifier.gathered,
    Lane: _Verifier.lane,
    Fold: lambda v, x: v.read(x.of),
    Exchange: _Verifier.exchanged,
    Word: _Verifier.word,
    Claim: _Verifier.counter,
    Seen: _Verifier.counter,
}

CHECKS: Final[Mapping[type, Callable[[_Verifier, Any], object]]] = {
    nodes.Let: _Verifier.let,
    nodes.Declare: _Verifier.declared,
    nodes.Assign: _Verifier.assigned,
    nodes.Array: _Verifier.array,
    nodes.Store: _Verifier.stored,
    nodes.LoadWords: _Verifier.words,
    nodes.StoreWords: _Verifier.words_stored,
    nodes.StoreBits: _Verifier.bits_stored,
    nodes.Prefetch: lambda v, s: v.index(s.at),
    nodes.For: _Verifier.counted,
    nodes.While: _Verifier.turned,
    nodes.If: _Verifier.branched,
    nodes.Scope: _Verifier.scoped,
    nodes.Break: _Verifier.left,
    nodes.Barrier: lambda v, s: v.together("a barrier"),
    nodes.GatherMatrices: _Verifier.gathering,
    nodes.MultiplyMatrices: _Verifier.multiplied,
    nodes.CopyWords: _Verifier.copied,
    nodes.WaitCopies: lambda v, s: None,
    nodes.Announce: _Verifier.announced,
    nodes.Fence: lambda v, s: None,
    nodes.Pause: lambda v, s: None,
    nodes.Switch: _Verifier.switched,
    nodes.Addresses: _Verifier.addressed,
    nodes.Call: _Verifier.called,
}
"""What is asked of each statement."""


def faults(
    statements: Sequence[nodes.Statement],
    arguments: Sequence[Argument],
    members: int,
    lanes: int,
    nbytes: Mapping[str, int],
) -> list[Fault]:
    """Every rule that a kernel breaks, and where it does first; nothing where it is legal.

    ``nbytes`` are the bytes behind each argument, where they are known.
    """
    verifier = _Verifier(arguments, members, lanes, nbytes)
    verifier.kernel(statements)
    return list(verifier.found.values())


def illegal(
    statements: Sequence[nodes.Statement],
    arguments: Sequence[Argument],
    members: int,
    lanes: int,
    nbytes: Mapping[str, int],
) -> list[str]:
    """The rules that ``faults`` finds to be broken, as sentences."""
    return [fault.rule for fault in faults(statements, arguments, members, lanes, nbytes)]
