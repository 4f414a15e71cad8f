"""Programs whose text was changed in a few places: numbers, types, names, operands, order.

Half of them are mended afterwards where that is possible: each op's type rule says again what its
results are, so that an edited attribute or operand meets the backends and not only the verifier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from ptir.errors import PtirError, TypeRuleError
from ptir.ir.parser import parse_unverified
from ptir.ir.program import Block, Port, Program
from ptir.ir.tokens import Reader, Token
from ptir.ops import OPS
from ptir.ops.profiles import PROFILES
from ptir.types import DTYPES, TensorType, parse_type
from ptir_testsuite.corpus.programs import drawn_program
from ptir_testsuite.corpus.seeds import BY_HAND, captured
from ptir_testsuite.corpus.values import Draws, draw
from ptir_testsuite.oracles.floats import Array

EDITS: Final = (1, 1, 1, 2, 3)
"""How many edits a text gets, each as likely: with more of them fewer are programs still."""

SIZES: Final = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 1000, 2**31 - 1, 2**31, 2**32, 2**62, 2**63)
"""Numbers that edits put in the place of others; attributes get some of them negative."""

SEEDED: Final = 12
"""Of so many texts each of those by hand and captured is the source of one or more."""

CLAIMS: Final = frozenset(PROFILES) - {"extension"}


@dataclass(frozen=True)
class EditedProgram:
    """Program ``number`` of ``seed`` among those whose text was changed."""

    seed: int
    number: int

    @property
    def id(self) -> str:
        """How it is named in reports, and made again."""
        return f"edited-{self.seed}-{self.number}"

    @property
    def text(self) -> str:
        """The changed text; most of them are no program any more."""
        return edited_text(self.seed, self.number)

    def arrays(self, program: Program) -> tuple[Array, ...]:
        """The inputs that it runs on."""
        draws = Draws("edited inputs", self.seed, self.number)
        palettes = [draws.choice(("plain", "plain", "awkward", "ties")) for _ in program.inputs]
        pairs = zip(program.inputs, palettes, strict=True)
        return tuple(draw(type, palette, draws, 4) for type, palette in pairs)


def edited_text(seed: int, number: int) -> str:
    """The text of an edited program, the same for the same seed and number."""
    draws = Draws("edited", seed, number)
    text = _source(draws, seed, number)
    for _ in range(draws.choice(EDITS)):
        text = _edited(text, draws)
    return _mended(text) if draws.one(4) else text


def _source(draws: Draws, seed: int, number: int) -> str:
    """A well-formed text: of a random program, or one of the others in turn."""
    others = (*BY_HAND, *captured())
    place = number % (SEEDED * 2)
    if place < SEEDED:
        return others[(number // (SEEDED * 2) * SEEDED + place) % len(others)]
    return _drawn_text(seed, draws.one(4096))


@cache
def _drawn_text(seed: int, number: int) -> str:
    return str(drawn_program(seed, number, CLAIMS).program)


# --- edits ---


def _edited(text: str, draws: Draws) -> str:
    """``text`` after one edit; a text that has no tokens any more stays as it is."""
    try:
        tokens = [token for token in Reader(text).tokenize() if token.kind != "end"]
    except PtirError:
        return text
    if len(tokens) < 2:
        return text
    token = draws.choice(tokens)
    kinds = {t.kind for t in tokens}
    for _ in range(4):  # marks and spaces are most of a text, and least of what matters
        if token.kind in CHANGES:
            break
        token = draws.choice(tokens)
    change = CHANGES.get(token.kind)
    if change is None or not draws.one(12):
        return _moved(text, tokens, draws)
    new = change(token.text, draws)
    everywhere = token.kind in ("type", "dtype", "value") and draws.one(3) and len(kinds) > 1
    if everywhere and token.kind == "type":
        return _replaced(text, tokens, token.text, new)
    return text[: token.offset] + new + text[token.offset + len(token.text) :]


def _replaced(text: str, tokens: list[Token], old: str, new: str) -> str:
    """``new`` for every token ``old``: a type changed everywhere often leaves a program."""
    for token in reversed(tokens):
        if token.text == old:
            text = text[: token.offset] + new + text[token.offset + len(old) :]
    return text


def _moved(text: str, tokens: list[Token], draws: Draws) -> str:
    """A token left out, written twice, or changed with the next one."""
    at = draws.one(len(tokens) - 1)
    one, two = tokens[at], tokens[at + 1]
    end = one.offset + len(one.text)
    kept = text[one.offset : end]
    between = text[end : two.offset]
    rest = text[two.offset + len(two.text) :]
    forms = (
        between + two.text,
        f"{kept} {kept}{between}{two.text}",
        f"{two.text} {between}{kept}",
    )
    return text[: one.offset] + str(draws.choice(forms)) + rest


def _number(text: str, draws: Draws) -> str:
    value = int(text)
    if draws.one(2):
        return str(value + draws.choice((-1, 1, 2)))
    return str(draws.choice(SIZES) * draws.choice((1, 1, 1, -1)))


def _float(text: str, draws: Draws) -> str:
    return str(draws.choice(("0.0", "-1.5", "1e30", "-inf", "nan(7ff8000000000000)", "1e-300")))


def _type(text: str, draws: Draws) -> str:
    try:
        type = parse_type(text)
    except (PtirError, ValueError):
        return text
    if not draws.one(3):
        return str(type.with_dtype(draws.choice(list(DTYPES.values()))))
    shape = list(type.shape)
    if not shape or not draws.one(4):
        shape.insert(draws.one(len(shape) + 1), draws.choice(SIZES))
    elif not draws.one(4):
        del shape[draws.one(len(shape))]
    else:
        at = draws.one(len(shape))
        near = shape[at] + draws.choice((-1, 1, 2))
        shape[at] = max(0, near) if draws.one(2) else draws.choice(SIZES)
    return str(type.with_shape(tuple(shape)))


def _dtype(text: str, draws: Draws) -> str:
    return f"!{draws.choice(list(DTYPES))}"


def _value(text: str, draws: Draws) -> str:
    return f"%{max(0, int(text[1:]) + draws.choice((-2, -1, -1, 1)))}"


def _name(text: str, draws: Draws) -> str:
    record = OPS.get(text)
    if record is None:
        return str(draws.choice(("true", "false", "none", "inf", "axis", "axes", text)))
    alike = [r.name for r in OPS.values() if len(r.operands) == len(record.operands)]
    alike = [name for name in alike if OPS[name].attributes == record.attributes] or alike
    return str(draws.choice(alike if draws.one(4) else list(OPS)))


@cache
def _words() -> tuple[str, ...]:
    choices = (c for r in OPS.values() for a in r.attributes for c in a.choices)
    return tuple(dict.fromkeys((*choices, "x0", "softmax", "")))


def _string(text: str, draws: Draws) -> str:
    return f'"{draws.choice(_words())}"'


def _hex(text: str, draws: Draws) -> str:
    digits = text[2:]
    if not digits:
        return "0x00"
    at = draws.one(len(digits))
    return (
        f"0x{digits[:at]}{draws.choice('0123456789abcdef')}{digits[at + draws.choice((1, 1, 2)) :]}"
    )


CHANGES: Final[dict[str, Callable[[str, Draws], str]]] = {
    "int": _number,
    "float": _float,
    "nan": _float,
    "type": _type,
    "dtype": _dtype,
    "value": _value,
    "name": _name,
    "string": _string,
    "hex": _hex,
}
"""How a token of each kind is changed."""


# --- mending ---


def _mended(text: str) -> str:
    """The text with the result types that its ops give, where every rule gives some."""
    try:
        program = parse_unverified(text)
        main = _retyped(program.main)
        return str(replace(program, main=main))
    except Exception:  # noqa: BLE001  what cannot be mended is tried as it is
        return text


def _retyped(block: Block) -> Block:
    types: list[TensorType] = list(block.inputs)
    instructions = []
    for i in block.instructions:
        regions = tuple(_retyped(region) for region in i.regions)
        operands = [types[v] for v in i.operands]
        results = OPS[i.op].infer(operands, i.attributes, regions)
        if len(results) != len(i.types):
            raise TypeRuleError(f"{i.op} has another number of results")
        instructions.append(replace(i, types=results, regions=regions))
        types.extend(results)
    return replace(block, instructions=tuple(instructions))


def numbered(program: Program) -> Program:
    """``program`` with its ports called by their numbers, and all of them inputs."""
    return Program(program.main, tuple(Port(f"x{n}") for n in range(len(program.ports))))
