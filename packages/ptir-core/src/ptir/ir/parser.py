"""Reads the text form of a program; the text may come from anywhere and is not trusted.

Recursive descent with one method for each thing in the grammar. White space and ``# comments``
separate tokens and mean nothing else.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from ptir.errors import unknown_name
from ptir.ir.attributes import Attr, Attributes, Literal
from ptir.ir.location import NAMED, Location
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ir.structure import (
    PORT_KINDS,
    RESERVED,
    block_depth,
    check_defined,
    check_depth,
    check_version,
    checked_place,
)
from ptir.ir.text import literal_digest, types_text, values_text
from ptir.ir.tokens import Reader, Token, unquoted
from ptir.types import TensorType, dtype, parse_type

_WORDS: Final[dict[str, Attr]] = {"true": True, "false": False, "none": None, "inf": math.inf}

T = TypeVar("T")


def parse_unverified(text: str, literals: Mapping[str, Literal] | None = None) -> Program:
    """The program printed as ``text``; ``literals`` holds those that it keeps in a side file.

    Checks syntax, numbering and lowerings; ``ops.reading.parse`` checks the ops too. Raises
    ``VerifyError`` with line and column, which are also the location of what says no other.
    """
    return _Parser(text, literals or {}).program()


class _Parser(Reader):
    def __init__(self, text: str, literals: Mapping[str, Literal]) -> None:
        super().__init__(text)
        self.literals = literals
        self.functions: dict[str, Block] = {}
        self.depths: dict[int, int] = {}

    # Single tokens.

    def number(self) -> int:
        token = self.take("value", "a value such as %0")
        with self.at(token):
            return int(token.text[1:])

    def name(self, what: str) -> str:
        """A bare or quoted name."""
        if self.token.kind == "string":
            return self.string()
        return self.take("name", what).text

    def string(self) -> str:
        token = self.take("string", "a string")
        with self.at(token):
            return unquoted(token.text)

    def type(self) -> TensorType:
        token = self.take("type", "a type such as f32[2,3]")
        with self.at(token):
            return parse_type(token.text)

    def types(self) -> tuple[TensorType, ...]:
        """Result types: ``f32[2], i32[2]``, or ``()`` for none."""
        if self.accept("("):
            self.expect(")")
            return ()
        found = [self.type()]
        while self.accept(","):
            found.append(self.type())
        return tuple(found)

    # The program.

    def program(self) -> Program:
        version = self.version()
        while self.accept("function"):
            self.function()
        if not self.accept("program"):
            raise self.expected("'function' or 'program'")
        self.expect("(")
        inputs = self.listed_inputs(self.port)
        block = self.block(tuple(type for type, _ in inputs), 1)
        if self.token.kind != "end":
            raise self.expected("the end of the text after the program")
        return Program(block, tuple(port for _, port in inputs), version)

    def version(self) -> tuple[int, int]:
        self.expect("ptir")
        token = self.token
        match = re.fullmatch(r"([0-9]{1,6})\.([0-9]{1,6})", token.text)
        if match is None:
            raise self.expected("a version such as 1.0")
        version = (int(match[1]), int(match[2]))
        with self.at(token):
            check_version(version)
        self.advance()
        return version

    def function(self) -> None:
        token = self.take("function", "a function name such as @softmax_0")
        name = self.function_name(token)
        if name in self.functions:
            raise self.error(token.offset, f"function @{name} is defined twice")
        self.functions[name] = self.signature(1)

    def function_name(self, token: Token) -> str:
        with self.at(token):
            return unquoted(token.text[1:]) if '"' in token.text else token.text[1:]

    def signature(self, level: int) -> Block:
        """Inputs in parentheses, then a block."""
        self.expect("(")
        return self.block(tuple(self.listed_inputs(self.type)), level)

    def listed_inputs(self, read: Callable[[], T]) -> list[T]:
        """Inputs ``%0: <read>, %1: <read>)``, numbered from zero."""
        count = 0

        def item() -> T:
            nonlocal count
            self.numbered((count,))
            self.expect(":")
            count += 1
            return read()

        return self.listed(item, ")")

    def port(self) -> tuple[TensorType, Port]:
        type = self.type()
        for kind in PORT_KINDS:
            if self.accept(kind):
                return type, Port(self.string(), kind)
        raise self.expected(" or ".join(map(repr, PORT_KINDS)))

    # Blocks.

    def block(self, inputs: tuple[TensorType, ...], level: int) -> Block:
        """Output types and instructions of a block whose inputs are read already."""
        with self.at(self.token):
            check_depth(level)
        self.expect("->")
        start, declared = self.token, self.types()
        self.expect("{")
        instructions: list[Instruction] = []
        count = len(inputs)
        while not self.accept("return"):
            instructions.append(self.instruction(count, level))
            count += len(instructions[-1].types)
        block = Block(inputs, tuple(instructions), self.defined("}", count))
        with self.at(start):
            block_depth(block, self.depths)
        if block.output_types != declared:
            found = types_text(block.output_types)
            raise self.error(start.offset, f"the block returns {found}, not {types_text(declared)}")
        return block

    def defined(self, end: str, count: int) -> tuple[int, ...]:
        """Values up to ``end``, each defined before."""

        def item() -> int:
            token, number = self.token, self.number()
            with self.at(token):
                check_defined((number,), count)
            return number

        return tuple(self.listed(item, end))

    def numbered(self, numbers: tuple[int, ...]) -> None:
        """Definitions of exactly these values."""
        for index, number in enumerate(numbers):
            if index:
                self.expect(",")
            if self.token.text != f"%{number}":
                raise self.expected(f"%{number}, the next value in order")
            self.advance()

    def instruction(self, count: int, level: int) -> Instruction:
        start = self.token
        results = self.results(count)
        op_token = self.take("name", "an op, or 'return'")
        op = op_token.text
        if op in RESERVED:
            raise self.error(op_token.offset, f"{op!r} cannot be an op name")
        callee = {"name": self.name("the name of the composite")} if op == "composite" else {}
        self.expect("(")
        operands = self.defined(")", count)
        attributes = self.attributes(callee)
        regions: tuple[Block, ...] = (self.lowering(),) if callee else ()
        self.expect(":")
        types = self.types()
        if len(types) != results:
            written = f"{results} results are named for {len(types)} types"
            raise self.error(start.offset, f"{written}; name each result: {_names(count, types)}")
        while not callee and self.accept("region"):
            regions += (self.signature(level + 1),)
        where = self.written() if self.accept("loc") else self.location(start.offset)
        return Instruction(op, operands, attributes, types, regions, where)

    def written(self) -> Location:
        """A location: ``("model.py":7, scope = "h.3.attn")``; any part may be missing."""
        found: dict[str, Any] = {}

        def item() -> None:
            token = self.token
            if token.kind == "string" and not found:
                found["file"] = self.string()
                self.expect(":")
                found["line"] = self.count()
                found["column"] = self.count() if self.accept(":") else 0
                return
            self.take("name", "a name such as scope")
            if token.text in found:
                raise self.error(token.offset, f"{token.text!r} is given twice")
            if token.text not in NAMED:
                raise self.error(
                    token.offset, unknown_name("part of a location", token.text, NAMED)
                )
            self.expect("=")
            found[token.text] = self.string()

        self.expect("(")
        self.listed(item, ")")
        return Location(**found)

    def count(self) -> int:
        """A line or column."""
        token = self.take("int", "a line or column")
        with self.at(token):
            return checked_place(int(token.text))

    def results(self, count: int) -> int:
        """How many values the instruction defines: ``%2, %3 =``."""
        if self.token.kind != "value":
            return 0
        results = 0
        while not results or self.accept(","):
            self.numbered((count + results,))
            results += 1
        self.expect("=")
        return results

    def lowering(self) -> Block:
        token = self.take("function", "the composite's lowering, such as @softmax_0")
        name = self.function_name(token)
        if name not in self.functions:
            message = unknown_name(
                "function", f"@{name}", (f"@{known}" for known in self.functions)
            )
            raise self.error(token.offset, f"{message}; a function is printed before its use")
        return self.functions[name]

    # Attributes.

    def attributes(self, callee: dict[str, str]) -> Attributes:
        values: dict[str, Attr] = dict(callee)

        def item() -> None:
            token = self.take("name", "an attribute name")
            if token.text in values:
                raise self.error(token.offset, f"attribute {token.text!r} is given twice")
            self.expect("=")
            values[token.text] = self.value(0)

        if self.accept("{"):
            self.listed(item, "}")
        return Attributes(values)

    def value(self, depth: int) -> Attr:
        """One attribute value, at ``depth`` lists."""
        token = self.token
        if self.accept("["):
            with self.at(token):
                check_depth(depth + 1, "lists in an attribute")
            return tuple(self.listed(lambda: self.value(depth + 1), "]"))
        if token.kind == "type":
            return self.literal()
        if token.kind == "name" and token.text in _WORDS:
            return _WORDS[self.advance().text]
        read = _SCALARS.get(token.kind)
        if read is None:
            raise self.expected("an attribute value")
        with self.at(self.advance()):
            return read(token.text)

    def literal(self) -> Literal:
        """A literal: ``f32[2] 0x<bytes>`` or ``f32[2] file"<digest>"``."""
        start, type = self.token, self.type()
        if self.accept("file"):
            return self.kept_literal(type)
        token = self.take("hex", 'the literal\'s bytes as 0x..., or file"..."')
        with self.at(start):
            return Literal(type, bytes.fromhex(token.text[2:]))

    def kept_literal(self, type: TensorType) -> Literal:
        token, digest = self.token, self.string()
        found = self.literals.get(digest)
        if found is None:
            raise self.error(
                token.offset,
                f"literal {digest!r} is not in the side file ({len(self.literals)} are)",
            )
        if found.type != type or literal_digest(found) != digest:
            raise self.error(
                token.offset, f"literal {digest!r} in the side file is {found.type} or was changed"
            )
        return found


def _names(count: int, types: tuple[TensorType, ...]) -> str:
    return values_text(range(count, count + len(types))) or "none"


def read_float(text: str) -> float:
    """The float printed as ``text`` (see ``attributes.float_text``); raises ``ValueError``."""
    if text.startswith("nan("):
        value = struct.unpack(">d", bytes.fromhex(text[4:-1]))[0]
        if not math.isnan(value):
            raise ValueError(f"{text} does not hold the bits of a NaN")
        return float(value)
    value = float(text)
    if math.isinf(value) and not text.endswith("inf"):
        raise ValueError(f"{text} is out of range for a 64-bit float")
    return value


_SCALARS: Final[dict[str, Callable[[str], Attr]]] = {
    "int": int,
    "float": read_float,
    "nan": read_float,
    "string": unquoted,
    "dtype": lambda text: dtype(text[1:]),
}
