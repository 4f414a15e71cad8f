"""Scripts: what is done to a backend in a lifetime row, step by step, the same for the same seed.

A script is drawn without a backend and without values; every handle or tensor has a name of its
own. It ends with everything deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ptir_testsuite.corpus.layouts import LAYOUTS
from ptir_testsuite.corpus.recipes import RECIPES, Shape
from ptir_testsuite.corpus.values import Draws

SHAPES: Final = ((7,), (1031,), (17, 16))
STEPS: Final = 64  # of a walk, before everything is deleted
MOST: Final = 12  # handles at once
PROGRAMS: Final = 4  # executables at once
PLAIN, ALIASED, SPENT = "plain", "one handle for both", "one handle for both, donated"
DONATIONS: Final = {
    PLAIN: frozenset[int](),
    "donates a": frozenset({0}),
    "donates b": frozenset({1}),
    ALIASED: frozenset[int](),
    SPENT: frozenset({0}),
}
"""The inputs that an executable consumes, by how it is compiled."""
WAYS: Final = tuple((recipe, how) for recipe in RECIPES for how in DONATIONS)
"""Every program in every way to compile it; a walk begins with two of them."""
GONE: Final = frozenset({"donates a"})
"""The ways in which a run consumes what the run before gave it."""
OF_TENSORS: Final = tuple((recipe, how) for recipe, how in WAYS if how != SPENT)
"""The same on tensors, where core refuses to read what it donates."""
THREADS: Final = 8


@dataclass(frozen=True)
class Step:
    """One thing that is done: to what, from what, and the names of what comes of it."""

    do: str
    name: str = ""
    of: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    shape: Shape = ()
    recipe: str = ""
    how: str = ""
    turns: int = 1

    def __str__(self) -> str:
        parts = [self.do, self.name]
        parts += [f"i32[{','.join(map(str, self.shape))}]"] if self.shape else []
        parts += [f"({', '.join(self.of)})"] if self.of else []
        parts += [f"-> {', '.join(self.gives)}"] if self.gives else []
        parts += [f"{self.recipe!r}"] if self.recipe else []
        parts += [f"[{self.how}]"] if self.how else []
        parts += [f"{self.turns} times"] if self.turns > 1 else []
        return " ".join(part for part in parts if part)


Script = tuple[Step, ...]


class _Drawn:
    """A walk under construction: which names are alive, and of what shape."""

    def __init__(self, draws: Draws, tensors: bool) -> None:
        self.draws, self.tensors = draws, tensors
        self.steps: list[Step] = []
        self.alive: dict[str, Shape] = {}
        self.lent: set[str] = set()
        self.gone: list[str] = []
        self.built: dict[str, Step] = {}
        self.count = 0

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def begin(self, recipe: str, how: str) -> None:
        """Run a program once, on what is uploaded for it."""
        shape = self.draws.choice(SHAPES)
        step = self.compiled(recipe, shape, how)
        for _ in range(2):
            self.upload(shape, may_lend=False)
        self.run(step)

    def upload(self, shape: Shape = (), may_lend: bool = True) -> None:
        if len(self.alive) >= MOST:
            self.delete()
            return
        name, shape = self.fresh("x"), shape or self.draws.choice(SHAPES)
        self.alive[name] = shape
        lend = may_lend and not self.tensors and self.draws.one(4) == 0
        self.lent |= {name} if lend else set()
        layout = self.draws.choice([*LAYOUTS])
        self.steps.append(Step("lend" if lend else "upload", name, shape=shape, how=layout))

    def compile(self) -> None:
        if len(self.built) >= PROGRAMS:
            self.drop()
            return
        recipe, how = self.draws.choice(OF_TENSORS if self.tensors else WAYS)
        self.compiled(recipe, self.draws.choice(SHAPES), how)

    def compiled(self, recipe: str, shape: Shape, how: str) -> Step:
        step = Step("compile", self.fresh("p"), shape=shape, recipe=recipe, how=how)
        self.built[step.name] = step
        self.steps.append(step)
        return step

    def run(self, step: Step | None = None) -> None:
        if not self.built:
            self.compile()
        step = step or self.built[self.draws.choice([*self.built])]
        donated = DONATIONS[step.how]
        fitting = [name for name, shape in self.alive.items() if shape == step.shape]
        operands: list[str] = []
        for place in range(2):
            free = [n for n in fitting if not (place in donated and n in self.lent)]
            if step.how == SPENT:
                free = operands or free
            elif step.how != ALIASED:
                free = [n for n in free if n not in operands]
            if not free:
                self.upload()
                return
            operands.append(self.draws.choice(free))
        gives = tuple(self.fresh("y") for _ in range(RECIPES[step.recipe].results))
        self.steps.append(
            Step("run", step.name, tuple(operands), gives, recipe=step.recipe, how=step.how)
        )
        for place in donated:
            del self.alive[operands[place]]
            self.gone.append(operands[place])
        self.alive |= dict.fromkeys(gives, step.shape)

    def copy(self) -> None:
        if not self.alive:
            return
        name, source = self.fresh("c"), self.draws.choice([*self.alive])
        self.alive[name] = self.alive[source]
        self.steps.append(Step("copy", of=(source,), gives=(name,)))

    def delete(self) -> None:
        if self.alive:
            name = self.draws.choice([*self.alive])
            del self.alive[name]
            self.lent.discard(name)
            self.steps.append(Step("delete", name))

    def drop(self) -> None:
        if self.built:
            name = self.draws.choice([*self.built])
            del self.built[name]
            self.steps.append(Step("delete", name))

    def look(self) -> None:
        """Everything again, or one thing; of tensors also one that was donated."""
        if self.tensors and self.gone and self.draws.one(2):
            self.steps.append(Step("use after donation", self.draws.choice(self.gone)))
        elif self.alive and self.draws.one(2):
            self.steps.append(Step("download", self.draws.choice([*self.alive])))
        else:
            self.steps.append(Step("check"))

    def collect(self) -> None:
        self.steps.append(Step("collect"))

    def end(self) -> Script:
        """The steps, and after them everything that there is deleted."""
        self.steps.append(Step("check"))
        for name in self.gone if self.tensors else ():
            self.steps.append(Step("use after donation", name))
        self.steps += [Step("delete", name) for name in (*self.alive, *self.built)]
        return (*self.steps, Step("collect"))


def walk(number: int, tensors: bool) -> Script:
    """Walk ``number``, over handles or over tensors."""
    drawn = _Drawn(Draws("lifetime", "tensors" if tensors else "walk", number), tensors)
    ways = OF_TENSORS if tensors else WAYS
    for place in (2 * number, 2 * number + 1):
        drawn.begin(*ways[place % len(ways)])
    every: list[Callable[[], None]] = [drawn.upload, drawn.run, drawn.run, drawn.run]
    every += [drawn.upload, drawn.compile, drawn.delete, drawn.look, drawn.look]
    every += [drawn.drop, drawn.collect] if tensors else [drawn.drop, drawn.collect, drawn.copy]
    while len(drawn.steps) < STEPS:
        drawn.draws.choice(every)()
    return drawn.end()


def threads(recipe: str, shape: Shape, shared: bool, how: str = PLAIN) -> Script:
    """Many threads run one executable; ``shared``: all read one handle besides one of their own.

    Where the first is donated, the first result takes its place in the next run.
    """
    second = [f"b{0 if shared else n}" for n in range(THREADS)]
    names = [f"a{n}" for n in range(THREADS)] + [*dict.fromkeys(second)]
    operands = [name for n in range(THREADS) for name in (f"a{n}", second[n])]

    def steps() -> Iterator[Step]:
        yield from (Step("upload", name, shape=shape, how="dense") for name in names)
        yield Step("compile", "p", shape=shape, recipe=recipe, how=how)
        yield Step("threads", "p", tuple(operands), recipe=recipe, how="" if how == PLAIN else how)
        yield Step("check")
        yield from (Step("delete", name) for name in (*names, "p"))
        yield Step("collect")

    return tuple(steps())


def rivals(recipe: str, shape: Shape) -> Script:
    """Many threads donate one tensor at the same time: one of them gets it."""
    others = tuple(f"b{n}" for n in range(THREADS))
    gives = tuple(f"y{n}" for n in range(RECIPES[recipe].results))

    def steps() -> Iterator[Step]:
        yield from (Step("upload", name, shape=shape, how="dense") for name in ("a", *others))
        yield Step("compile", "p", shape=shape, recipe=recipe, how="donates a")
        yield Step("rivals", "p", ("a", *others), gives, recipe=recipe, how="donates a")
        yield Step("use after donation", "a")
        yield Step("check")
        yield from (Step("delete", name) for name in (*others, *gives, "p"))
        yield Step("collect")

    return tuple(steps())


def repeat(recipe: str, shape: Shape, how: str, turns: int) -> Script:
    """Several runs in one call, each fed with the first result of the one before, three times.

    The last result of every run is kept, and is looked at after all of them.
    """
    results = RECIPES[recipe].results

    def steps() -> Iterator[Step]:
        yield from (Step("upload", name, shape=shape, how="dense") for name in ("a", "b"))
        yield Step("compile", "p", shape=shape, recipe=recipe, how=how)
        first, left = "a", ["b"]
        for call in range(3):
            made = [f"y{call}_{n}" for n in range(results)]
            kept = [f"k{call}_{turn}" for turn in range(turns)]
            gives = (*made, *kept)
            yield Step("repeat", "p", (first, "b"), gives, recipe=recipe, how=how, turns=turns)
            yield Step("check")
            left += [name for name in (*made[1:], *kept) if name not in left]
            left += [] if how in GONE else [first]
            first = made[0]
            yield Step("collect")
        yield Step("check")
        yield from (Step("delete", name) for name in (*left, first, "p"))
        yield Step("collect")

    return tuple(steps())


def memory(recipe: str, shape: Shape) -> Script:
    """Live bytes grow with what is uploaded and computed, and shrink with what is deleted."""
    gives = tuple(f"y{n}" for n in range(RECIPES[recipe].results))

    def steps() -> Iterator[Step]:
        yield from (Step("upload", name, shape=shape, how="dense") for name in "ab")
        yield Step("grown")
        yield Step("compile", "p", shape=shape, recipe=recipe, how=PLAIN)
        for turn in range(4):
            made = tuple(f"{name}_{turn}" for name in gives)
            yield Step("run", "p", ("a", "b"), made, recipe=recipe, how=PLAIN)
            yield Step("grown")
            yield from (Step("delete", name) for name in made[turn % 2 :])
        yield Step("check")
        yield Step("delete everything")
        yield Step("collect")

    return tuple(steps())
