"""Drawing a random typed program from the op records, the same for the same seed and number.

Values are shared between instructions; a program may return an input, one value twice, or take one
buffer as two inputs. What follows an approximate value must be continuous: every other op takes
only values of the *exact class*, whose every bit the definitions fix. A third of the programs are
*dense*: chains of continuous ops of one float dtype, which backends fuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops import OPS
from ptir.ops.classes import FLOAT
from ptir.ops.record import Op
from ptir.types import DTYPES, TensorType
from ptir_testsuite.corpus.derivation import judged
from ptir_testsuite.corpus.profiles import profiles_of
from ptir_testsuite.corpus.values import Draws, draw
from ptir_testsuite.corpus.variants import Template, branches, dtype_variants, from_samples
from ptir_testsuite.oracles.accuracy import Terms, bound_of
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.oracles.propagation import is_continuous

SHAPES: Final = ((2, 3), (3,), (), (4, 4), (3, 2), (1, 5))
MOST_INPUTS: Final = 8
TRIES: Final = 40


@dataclass(frozen=True)
class Drawn:
    """A program, its inputs, and which input shares a buffer with which."""

    program: Program
    arrays: tuple[Array, ...]
    aliases: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Choice:
    """A call that programs are made of, with the names of its dtypes and operand types at hand."""

    template: Template
    dtypes: frozenset[str]
    operands: frozenset[str]


@cache
def choices(claims: frozenset[str]) -> dict[str, list[Choice]]:
    """Every call of every judged op within the claims, by op."""
    found: dict[str, list[Choice]] = {}
    for op in OPS.values():
        if not judged(op):
            continue
        calls = branches(op, from_samples(op))
        if "elementwise" in op.traits:
            calls = [replace(t, types=tuple(x.with_shape((2,)) for x in t.types)) for t in calls]
        variants = {v.key: v for t in calls for v in dtype_variants(op, t)}
        mine = [_choice(v) for v in variants.values() if _within(op, v, claims)]
        if mine:
            found[op.name] = mine
    return found


def _choice(template: Template) -> Choice:
    everything = (*template.types, *(template.results or ()))
    names = frozenset(t.dtype.name for t in everything)
    return Choice(template, names, frozenset(map(str, template.types)))


@cache
def dtypes(claims: frozenset[str]) -> list[str]:
    """The dtypes that occur within the claims, in the order of the dtype table."""
    found = {name for mine in choices(claims).values() for c in mine for name in c.dtypes}
    return [name for name in DTYPES if name in found]


def _within(op: Op, template: Template, claims: frozenset[str]) -> bool:
    dtypes = [t.dtype for t in (*template.types, *(template.results or ()))]
    return profiles_of(op, dtypes) - {"extension"} <= claims


def drawn_program(seed: int, number: int, claims: frozenset[str]) -> Drawn:
    """Program ``number`` of a seed, within the claimed profiles, and the same for all backends."""
    return _Drawing(seed, number, claims).finish()


def exact_of(program: Program, rounds: frozenset[str] = frozenset()) -> tuple[bool, ...]:
    """For every value, whether the definitions fix its every bit.

    ``rounds`` are the ops that the backend rounds correctly, whose results are thus exact.
    """
    return _exact_values(program.main, Terms(rounds))


def _exact_values(block: Block, terms: Terms) -> tuple[bool, ...]:
    """``exact_of`` for the values of a block whose inputs are exact; regions must be, too."""
    exact = [True] * len(block.inputs)
    for instruction in block.instructions:
        known = all(exact[v] for v in instruction.operands)
        for region in instruction.regions if known else ():
            inside = _exact_values(region, terms)
            known = known and all(inside[v] for v in region.outputs)
        exact += [known and _certain(instruction.op, type, terms) for type in instruction.types]
    return tuple(exact)


def _certain(op: str, type: TensorType, terms: Terms) -> bool:
    """Whether a result of exact operands is exact."""
    return bound_of(OPS[op], type.dtype, terms).kind in ("exact", "rounded")


class _Drawing:
    """A program under construction; values are numbered as they will be in the block."""

    def __init__(self, seed: int, number: int, claims: frozenset[str]) -> None:
        self.draws = Draws("program", seed, number, ",".join(sorted(claims)))
        self.choices = choices(claims)
        self.inputs: list[tuple[TensorType, Array]] = []
        self.types: list[TensorType] = []
        self.exact: list[bool] = []
        self.places: list[tuple[bool, int]] = []  # whether an input, and its number among its kind
        self.steps: list[tuple[Template, tuple[int, ...]]] = []
        floats = [name for name in dtypes(claims) if DTYPES[name] in FLOAT]
        self.dense = not self.draws.one(3) and bool(floats)
        some = self._some_dtypes(dtypes(claims))
        self.dtypes = frozenset((self.draws.choice(floats),)) if self.dense else some
        self.known: set[str] = set()
        length = 3 + self.draws.one(10)
        names = self._dense_names() if self.dense else list(self.choices)
        for _ in range(TRIES * length):
            if len(self.steps) == length:
                break
            self._step(self.draws.choice(names))

    def _some_dtypes(self, every: list[str]) -> frozenset[str]:
        """The dtypes of this program: bool, i32, mostly f32, and two of all there are."""
        usual = ["bool", "i32", *(["f32"] * (self.draws.one(4) > 0))]
        return frozenset((*usual, self.draws.choice(every), self.draws.choice(every)))

    def _dense_names(self) -> list[str]:
        """The continuous ops, elementwise ones thrice; in half of the programs only exact ones."""
        (dtype,) = (DTYPES[name] for name in self.dtypes)
        found = [OPS[name] for name in self.choices if is_continuous(OPS[name])]
        if self.draws.one(2):
            found = [op for op in found if bound_of(op, dtype).kind in ("exact", "rounded")]
        names = [op.name for op in found for _ in range(3 if "elementwise" in op.traits else 1)]
        return names or list(self.choices)

    def _candidates(self, name: str) -> list[Choice]:
        """The op's calls in this program's dtypes, those that can use a value if there are any."""
        found = [c for c in self.choices[name] if c.dtypes <= self.dtypes]
        if "elementwise" in OPS[name].traits:
            return found
        return [c for c in found if not self.known.isdisjoint(c.operands)] or found

    def _step(self, name: str) -> None:
        candidates = self._candidates(name)
        if not candidates or (not OPS[name].operands and self.draws.one(6)):
            return
        template = self._shaped(self.draws.choice(candidates).template)
        if not template.fits or template.results is None:
            return
        picked = [self._existing(template, place) for place in range(len(template.types))]
        known = [p for p in picked if p is not None]
        if self.dense and not all(type.size for type in template.results):
            return
        if self.types and template.types and not known:
            return  # it would stand alone
        if len(self.inputs) + len(picked) - len(known) > MOST_INPUTS:
            return
        operands = tuple(
            self._fresh(template, place) if p is None else p for place, p in enumerate(picked)
        )
        exact = all(self.exact[v] for v in operands)
        for index, type in enumerate(template.results):
            certain = _certain(name, type, Terms())
            self._add(type, exact and certain, (False, len(self.steps) * 8 + index))
        self.steps.append((template, operands))

    def _shaped(self, template: Template) -> Template:
        """An elementwise call in the shape of a value that there is, or of a new one."""
        if "elementwise" not in OPS[template.op].traits:
            return template
        wanted = {t.dtype for t in template.types}
        shapes = [t.shape for t in self.types if t.dtype in wanted] or list(SHAPES)
        shape = self.draws.choice(shapes)
        return replace(template, types=tuple(t.with_shape(shape) for t in template.types))

    def _existing(self, template: Template, place: int) -> int | None:
        """A value that fits an operand; None where there is none or a new input is better."""
        if template.kept and template.kept[place] is not None:
            return None
        free = is_continuous(OPS[template.op])
        fitting = [
            v
            for v, type in enumerate(self.types)
            if type == template.types[place] and (self.exact[v] or free)
        ]
        if self.dense and fitting and not place:
            return fitting[-1]  # which makes chains
        return self.draws.choice(fitting) if fitting and self.draws.one(8) else None

    def _fresh(self, template: Template, place: int) -> int:
        type = template.types[place]
        kept = template.kept[place] if template.kept else None
        same = [a for t, a in self.inputs if t == type]
        if kept is not None:
            array = kept
        elif same and not self.draws.one(4):
            array = same[0]  # one buffer as two inputs
        else:
            palette = self.draws.choice(("plain", "plain", "awkward", "ties"))
            array = draw(type, palette, self.draws, 4)
        self.inputs.append((type, array))
        return self._add(type, True, (True, len(self.inputs) - 1))

    def _add(self, type: TensorType, exact: bool, place: tuple[bool, int]) -> int:
        self.types.append(type)
        self.known.add(str(type))
        self.exact.append(exact)
        self.places.append(place)
        return len(self.types) - 1

    def finish(self) -> Drawn:
        """The program with its outputs chosen."""
        count = len(self.inputs)
        inputs = [v for v, (is_input, _) in enumerate(self.places) if is_input]
        others = [v for v, (is_input, _) in enumerate(self.places) if not is_input]
        number = {v: n for n, v in enumerate([*inputs, *others])}
        instructions = tuple(
            Instruction(
                t.op, tuple(number[v] for v in operands), t.attributes, t.results or (), t.regions
            )
            for t, operands in self.steps
        )
        types = tuple(type for type, _ in self.inputs)
        block = Block(types, instructions, self._outputs(number))
        program = Program(block, tuple(Port(f"x{i}") for i in range(count)))
        arrays = tuple(array for _, array in self.inputs)
        return Drawn(program, arrays, aliases_of(arrays))

    def _outputs(self, number: dict[int, int]) -> tuple[int, ...]:
        """The last value, up to three more, and now and then an input or the same value twice."""
        last = len(self.types) - 1
        chosen = [last, *(self.draws.one(len(self.types)) for _ in range(self.draws.one(4)))]
        if not self.draws.one(6):
            chosen.append(chosen[0])
        return tuple(number[v] for v in chosen)


def aliases_of(arrays: Sequence[Array]) -> tuple[tuple[int, ...], ...]:
    """The inputs that are one and the same array."""
    groups: dict[int, list[int]] = {}
    for place, array in enumerate(arrays):
        groups.setdefault(id(array), []).append(place)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
