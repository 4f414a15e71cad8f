"""Programs as JSON values: the same information as the text form, for tools that read JSON.

Floats, dtypes and literals are tagged objects, since JSON has no NaN and cannot tell 1 from 1.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ptir.errors import PtirError, VerifyError, unknown_name
from ptir.ir.attributes import Attr, Attributes, Literal, float_text
from ptir.ir.location import Location
from ptir.ir.parser import read_float
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ir.structure import (
    PORT_KINDS,
    block_depth,
    check_depth,
    check_structure,
    check_version,
    checked_place,
)
from ptir.ir.text import lowering_names
from ptir.ir.tokens import FLOAT, NAN, TYPE
from ptir.types import DType, TensorType, dtype, parse_type

_FLOAT: Final = re.compile(f"{FLOAT}|{NAN}|inf")


def to_json(program: Program, *, locations: bool = False) -> dict[str, Any]:
    """The JSON value of ``program``; raises ``VerifyError`` for a malformed one.

    With ``locations`` each instruction says where it comes from, if it is known.
    """
    check_structure(program)
    writer = _Writer(lowering_names(program.main), locations)
    return {
        "ptir": list(program.version),
        "ports": [{"name": port.name, "kind": port.kind} for port in program.ports],
        "functions": [{"name": n, "block": writer.block(b)} for b, n in writer.names.items()],
        "main": writer.block(program.main),
    }


@dataclass(frozen=True)
class _Writer:
    names: dict[Block, str]
    locations: bool

    def block(self, block: Block) -> dict[str, Any]:
        return {
            "inputs": [str(type) for type in block.inputs],
            "instructions": [self.instruction(i) for i in block.instructions],
            "outputs": list(block.outputs),
        }

    def instruction(self, instruction: Instruction) -> dict[str, Any]:
        composite = instruction.op == "composite"
        regions = instruction.regions
        location = location_json(instruction.location) if self.locations else {}
        return {
            "op": instruction.op,
            "operands": list(instruction.operands),
            "attributes": {k: _value_json(v) for k, v in instruction.attributes.items()},
            "types": [str(type) for type in instruction.types],
            "regions": [self.names[r] if composite else self.block(r) for r in regions],
            **({"location": location} if location else {}),
        }


def location_json(location: Location) -> dict[str, Any]:
    """What is known of a location, by field."""
    return {name: value for name, value in location._asdict().items() if value}


def _value_json(value: Attr) -> Any:
    match value:
        case float():
            return {"float": float_text(value)}
        case DType():
            return {"dtype": value.name}
        case Literal():
            return {"literal": str(value.type), "hex": value.data.hex()}
        case tuple():
            return [_value_json(item) for item in value]
        case _:
            return value


def from_json_unverified(value: Any) -> Program:
    """The program whose JSON value is ``value``, which is not trusted; raises ``VerifyError``.

    What its ops mean is not looked at; ``ops.reading.from_json`` does that too.
    """
    version = _member(value, "program", "ptir", list)
    where = "program.ptir"
    if len(version) != 2:
        raise VerifyError(f"{where}: expected [major, minor], found {version!r}")
    major, minor = _integers(version, where)
    check_version((major, minor))
    _keys(value, "program", ("ptir", "ports", "functions", "main"))
    reader = _Reader()
    for index, function in enumerate(_member(value, "program", "functions", list)):
        reader.function(function, f"program.functions[{index}]")
    main = reader.block(_member(value, "program", "main", dict), "program.main", 1)
    ports = _member(value, "program", "ports", list)
    read = tuple(_port(port, f"program.ports[{n}]") for n, port in enumerate(ports))
    program = Program(main, read, (major, minor))
    check_structure(program)
    return program


class _Reader:
    def __init__(self) -> None:
        self.functions: dict[str, Block] = {}
        self.depths: dict[int, int] = {}

    def function(self, value: Any, where: str) -> None:
        name = _member(value, where, "name", str)
        _keys(value, where, ("name", "block"))
        if name in self.functions:
            raise VerifyError(f"{where}: function {name!r} is defined twice")
        block = _member(value, where, "block", dict)
        self.functions[name] = self.block(block, f"{where}.block", 1)

    def block(self, value: Any, where: str, level: int) -> Block:
        check_depth(level)
        instructions = _member(value, where, "instructions", list)
        block = Block(
            _types(_member(value, where, "inputs", list), f"{where}.inputs"),
            tuple(
                self.instruction(item, f"{where}.instructions[{index}]", level)
                for index, item in enumerate(instructions)
            ),
            _integers(_member(value, where, "outputs", list), f"{where}.outputs"),
        )
        _keys(value, where, ("inputs", "instructions", "outputs"))
        block_depth(block, self.depths)
        return block

    def instruction(self, value: Any, where: str, level: int) -> Instruction:
        op = _member(value, where, "op", str)
        attributes = _member(value, where, "attributes", dict)
        regions = _member(value, where, "regions", list)
        _keys(value, where, ("op", "operands", "attributes", "types", "regions", "location"))
        return Instruction(
            op,
            _integers(_member(value, where, "operands", list), f"{where}.operands"),
            Attributes({str(k): _value(v, f"{where}.{k}", 0) for k, v in attributes.items()}),
            _types(_member(value, where, "types", list), f"{where}.types"),
            tuple(
                self.region(region, f"{where}.regions[{index}]", level, op == "composite")
                for index, region in enumerate(regions)
            ),
            _location(value.get("location", {}), f"{where}.location"),
        )

    def region(self, value: Any, where: str, level: int, composite: bool) -> Block:
        if not composite:
            return self.block(value, where, level + 1)
        name = _kind(value, where, str)
        if name not in self.functions:
            message = unknown_name("function", name, self.functions)
            raise VerifyError(f"{where}: {message}; a function is listed before its use")
        return self.functions[name]


_KINDS: Final = {dict: "an object", list: "an array", str: "a string", int: "an integer"}


def _kind(value: Any, where: str, kind: type) -> Any:
    if type(value) is not kind:
        found = repr(value)
        shown = found if len(found) <= 40 else f"{found[:40]}..."
        raise VerifyError(f"{where}: expected {_KINDS[kind]}, found {shown}")
    return value


def _member(value: Any, where: str, key: str, kind: type) -> Any:
    record = _kind(value, where, dict)
    if key not in record:
        raise VerifyError(f"{where}: member {key!r} is missing")
    return _kind(record[key], f"{where}.{key}", kind)


def _keys(value: dict[str, Any], where: str, known: Sequence[str]) -> None:
    for key in value:
        if key not in known:
            raise VerifyError(f"{where}: {unknown_name('member', str(key), known)}")


def _integers(values: list[Any], where: str) -> tuple[int, ...]:
    return tuple(_kind(v, f"{where}[{index}]", int) for index, v in enumerate(values))


def _types(values: list[Any], where: str) -> tuple[TensorType, ...]:
    return tuple(_type(v, f"{where}[{index}]") for index, v in enumerate(values))


def _type(value: Any, where: str) -> TensorType:
    text = _kind(value, where, str)
    if not re.fullmatch(TYPE, text):
        raise VerifyError(f"{where}: expected a type such as f32[2,3], found {text[:40]!r}")
    try:
        return parse_type(text)
    except (PtirError, ValueError) as error:
        raise VerifyError(f"{where}: {error}") from None


def _port(value: Any, where: str) -> Port:
    name, kind = _member(value, where, "name", str), _member(value, where, "kind", str)
    _keys(value, where, ("name", "kind"))
    if kind not in PORT_KINDS:
        raise VerifyError(f"{where}: {unknown_name('kind', kind, PORT_KINDS)}")
    return Port(name, kind)


def _location(value: Any, where: str) -> Location:
    """A location of which any part may be missing."""
    given = _kind(value, where, dict)
    _keys(given, where, Location._fields)
    for name, part in given.items():
        if name in ("line", "column"):
            number = _kind(part, f"{where}.{name}", int)
            _converted(f"{where}.{name}", partial(checked_place, number))
        else:
            _kind(part, f"{where}.{name}", str)
    return Location(**given)


def _value(value: Any, where: str, depth: int) -> Attr:
    """One attribute value, inside ``depth`` arrays."""
    match value:
        case None | bool() | int() | str():
            return value
        case list():
            check_depth(depth + 1, f"{where}: lists in an attribute")
            return tuple(_value(item, where, depth + 1) for item in value)
        case {"float": str(text), **rest} if not rest and _FLOAT.fullmatch(text):
            return _converted(where, lambda: read_float(text))
        case {"dtype": str(name), **rest} if not rest:
            return _converted(where, lambda: dtype(name))
        case {"literal": str(type), "hex": str(data), **rest} if not rest:
            element = _type(type, where)
            return _converted(where, lambda: Literal(element, bytes.fromhex(data)))
    raise VerifyError(
        f'{where}: expected an attribute value (floats are {{"float": "1.0"}}), '
        f"found {str(value)[:40]}"
    )


def _converted(where: str, convert: Callable[[], Attr]) -> Attr:
    try:
        return convert()
    except (PtirError, ValueError) as error:
        raise VerifyError(f"{where}: {error}") from None
