"""What every program must satisfy before its ops mean anything: numbers, names, depth, version.

The parser, the JSON reader, the printer and the verifier share these checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ptir.errors import TypeRuleError, VerifyError
from ptir.ir.attributes import Attr
from ptir.ir.text import NAME, instruction_text, is_composite
from ptir.types import TensorType

if TYPE_CHECKING:
    from ptir.ir.program import Block, Instruction, Program

VERSION: Final = (1, 0)
"""Major and minor version of the form that this build reads and writes."""

MAX_DEPTH: Final = 64
"""Most levels of blocks inside blocks (through lowerings too) and of lists inside lists."""

LAST_MINOR: Final = 999_999
RESERVED: Final = frozenset({"loc", "region", "return"})
PORT_KINDS: Final = ("input", "parameter")

Check = Callable[["Block", "Instruction"], None]
"""Raises ``VerifyError`` or ``TypeRuleError`` for an instruction of a block that is wrong."""


def check_version(version: tuple[int, int]) -> None:
    """Refuse a program of another major version by name."""
    major, minor = version
    if not 0 <= minor <= LAST_MINOR:
        raise VerifyError(f"ptir {major}.{minor}: the minor version must be 0 to {LAST_MINOR}")
    if major != VERSION[0]:
        raise VerifyError(
            f"ptir {major}.{minor}: this build reads ptir {VERSION[0]}.x; "
            f"install a ptir {major}.x to read it, or write the program again with ptir "
            f"{VERSION[0]}.x"
        )


def check_defined(values: Iterable[int], count: int) -> None:
    """Refuse value numbers outside ``0 <= number < count``."""
    for value in values:
        if not 0 <= value < count:
            last = f"the last one here is %{count - 1}" if count else "nothing is defined here"
            raise VerifyError(f"%{value} is used before it is defined; {last}")


def checked_place(number: int) -> int:
    """A line or column of a location; a negative one is refused."""
    if number < 0:
        raise VerifyError(f"{number} is no line or column; they count from 1, and 0 is not known")
    return number


def check_depth(depth: int, what: str = "blocks") -> None:
    """Refuse nesting deeper than ``MAX_DEPTH``."""
    if depth > MAX_DEPTH:
        raise VerifyError(f"{what} are nested more than {MAX_DEPTH} levels deep; flatten them")


def block_depth(block: Block, known: dict[int, int]) -> int:
    """The levels of ``block``, kept in ``known`` by ``id``; its regions must be there already."""
    inner = (known[id(region)] for i in block.instructions for region in i.regions)
    depth = 1 + max(inner, default=0)
    check_depth(depth)
    known[id(block)] = depth
    return depth


def blocks(program: Program) -> Iterator[tuple[str, Block]]:
    """Each distinct block with a name for messages, inner ones first; checks depth on the way."""
    known: dict[int, int] = {}

    def visit(where: str, block: Block, level: int) -> Iterator[tuple[str, Block]]:
        check_depth(level - 1 + known.get(id(block), 1))
        if id(block) in known:
            return
        for instruction in block.instructions:
            for index, region in enumerate(instruction.regions):
                yield from visit(_region_name(instruction, index), region, level + 1)
        block_depth(block, known)
        yield where, block

    yield from visit("program", program.main, 1)


def _region_name(instruction: Instruction, index: int) -> str:
    if is_composite(instruction):
        return f"lowering of {instruction.name}"
    return f"region {index} of {instruction.op}"


def broken(
    where: str, instruction: Instruction, numbers: tuple[int, ...], rule: str
) -> VerifyError:
    """The error for an instruction that breaks a rule: the place, its printed line, the rule."""
    line = instruction_text(instruction, numbers, literals={})
    at = str(instruction.location)
    return VerifyError(f"{at + ': ' if at else ''}{where}: `{line}`: {rule}")


def check_structure(program: Program) -> None:
    """Refuse a malformed program with ``VerifyError``; what its ops mean is not looked at."""
    check_head(program)
    for where, block in blocks(program):
        check_block(where, block)


def check_head(program: Program) -> None:
    """Refuse a program whose version or ports are wrong."""
    check_version(program.version)
    inputs, ports = len(program.main.inputs), len(program.ports)
    if inputs != ports:
        raise VerifyError(f"program has {ports} ports for {inputs} inputs; give each input one")
    for port in program.ports:
        if port.kind not in PORT_KINDS:
            raise VerifyError(
                f"port {port.name!r} has kind {port.kind!r}; one of {', '.join(PORT_KINDS)}"
            )


def check_block(where: str, block: Block, check: Check | None = None) -> None:
    """Refuse a block with malformed types, names or numbers; its regions are not looked at.

    ``check`` stands in for ``check_instruction``, which it may call less often, and sees only
    instructions whose operands are defined.
    """
    try:
        _check_types(block.inputs)
    except VerifyError as error:
        raise VerifyError(f"{where}: inputs: {error}") from None
    defined = len(block.inputs)
    for instruction in block.instructions:
        end = defined + len(instruction.types)
        try:
            check_defined(instruction.operands, defined)
            if check is None:
                check_instruction(instruction)
            else:
                check(block, instruction)
        except (VerifyError, TypeRuleError) as error:
            rule = str(error).partition("\n")[0]
            made = broken(where, instruction, tuple(range(defined, end)), rule)
            raise made from error.__cause__
        defined = end
    try:
        check_defined(block.outputs, defined)
    except VerifyError as error:
        raise VerifyError(f"{where}: return: {error}") from None


def check_instruction(instruction: Instruction) -> None:
    """Refuse malformed names, types and attributes; what the op means is not looked at."""
    if not NAME.fullmatch(instruction.op) or instruction.op in RESERVED:
        raise VerifyError(f"{instruction.op!r} cannot be an op name; letters, digits, _ and .")
    _check_types(instruction.types)
    for name, value in instruction.attributes.items():
        if not NAME.fullmatch(name):
            raise VerifyError(f"{name!r} cannot be an attribute name; letters, digits, _ and .")
        _check_value(value, 0)
    if instruction.op == "composite" and not is_composite(instruction):
        raise VerifyError("a composite needs a name (a string) and exactly one lowering")


def _check_types(types: Iterable[TensorType]) -> None:
    for type in types:
        if any(size < 0 for size in type.shape):
            raise VerifyError(f"type {type} has a negative axis size; axis sizes must be >= 0")
        if type.excess:
            raise VerifyError(f"type {type} {type.excess}")


def _check_value(value: Attr, depth: int) -> None:
    if isinstance(value, tuple):
        check_depth(depth + 1, "lists in an attribute")
        for item in value:
            _check_value(item, depth + 1)
