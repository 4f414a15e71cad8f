"""Lifetime rows: which scripts there are, and what one comes to on a target.

Every script is played twice. After the second time no more bytes may be live than after the first:
what a backend makes once and keeps is its own business, what it makes again and again is a leak.
Where a backend does not say what is live, the process is measured, while scripts are played whose
tensors are large enough to show.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ptir.errors import UnsupportedError
from ptir_testsuite.corpus.recipes import Shape, program
from ptir_testsuite.corpus.scripts import PLAIN, WAYS, Script, memory, repeat, rivals, threads, walk
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.kinds.handles import Handles, Player
from ptir_testsuite.running.kinds.tensors import Tensors
from ptir_testsuite.running.outcomes import Outcome, Row

WALKS: Final = -(-len(WAYS) // 2)
THREADED: Final[tuple[tuple[str, Shape, bool], ...]] = (
    ("sum", (1031,), True),
    ("chain", (7,), False),
    ("chain", (1031,), True),
    ("totals", (17, 16), False),
)
DONATING: Final[tuple[tuple[str, Shape, bool], ...]] = (
    ("sum and difference", (1031,), True),
    ("chain", (7,), False),
    ("chain", (1031,), True),
    ("totals", (17, 16), False),
)
RIVALS: Final[tuple[tuple[str, Shape], ...]] = (("sum", (7,)), ("totals", (17, 16)))
REPEATED: Final[tuple[tuple[str, Shape, str, int], ...]] = (
    ("sum", (1031,), PLAIN, 3),
    ("sum and difference", (1031,), "donates a", 2),
    ("both returned", (7,), "donates a", 5),
    ("totals", (17, 16), "donates a", 16),
    ("totals", (17, 16), PLAIN, 17),
)
"""Runs in one call; with more of them than backends take at once, and as many."""
MEMORY: Final[tuple[tuple[str, Shape], ...]] = (
    ("sum and difference", (1031,)),
    ("chain", (512, 257)),
)
_SCRIPTS: Final[dict[str, tuple[int, Callable[[int], Script]]]] = {
    "walk": (WALKS, lambda number: walk(number, tensors=False)),
    "tensors": (WALKS, lambda number: walk(number, tensors=True)),
    "threads": (len(THREADED), lambda number: threads(*THREADED[number])),
    "donations": (len(DONATING), lambda number: threads(*DONATING[number], "donates a")),
    "rivals": (len(RIVALS), lambda number: rivals(*RIVALS[number])),
    "repeat": (len(REPEATED), lambda number: repeat(*REPEATED[number])),
    "memory": (len(MEMORY), lambda number: memory(*MEMORY[number])),
}
"""The kinds of rows: how many there are, and the script of each."""
KINDS: Final = tuple(_SCRIPTS)
ON_TENSORS: Final = ("tensors", "rivals")
"""The kinds that go through core."""


@dataclass(frozen=True)
class Lifetime:
    """One script, by its kind and its number there."""

    kind: str
    number: int

    @cached_property
    def script(self) -> Script:
        """The steps."""
        return _SCRIPTS[self.kind][1](self.number)

    @cached_property
    def id(self) -> str:
        """A hash of the steps and the programs in them."""
        state = hashlib.blake2b("\n".join(map(str, self.script)).encode(), digest_size=6)
        for step in self.script:
            if step.do == "compile":
                state.update(str(program(step.recipe, step.shape)).encode())
        return f"lifetime-{self.kind}-{state.hexdigest()}"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """All is of one dtype of the core."""
        return ("i32",)

    @property
    def call(self) -> str:
        """The row for a reader."""
        return f"{self.kind}: {len(self.script)} steps"


def lifetimes(kind: str = "") -> Iterator[Lifetime]:
    """Every script (of one kind)."""
    for name, (count, _) in _SCRIPTS.items():
        if kind in ("", name):
            yield from (Lifetime(name, number) for number in range(count))


def run_lifetime(item: Lifetime, setting: Setting) -> Row:
    """Play the script twice and compare what is live."""
    start = time.perf_counter()
    claimed = "core" in setting.claims
    row = Row(item.id, "lifetime", item.call, item.dtypes, ("core",), Outcome.PASS, claimed=claimed)
    try:
        if not _played(item, setting):
            measured = _measured(item, setting)
            row = replace(row, facts={"memory": "of the process" if measured else "not reported"})
    except Failed as failed:
        text = f"{item.kind}: {failed.message}\n  case {item.id}"
        row = failed.ended(row, text)
    except UnsupportedError as error:
        row = replace(row, outcome=Outcome.UNSUPPORTED, phase="compile", message=str(error))
    return replace(row, seconds=time.perf_counter() - start)


def _played(item: Lifetime, setting: Setting) -> bool:
    """Play the script; whether the backend says what is live."""
    player: type[Player] = Tensors if item.kind in ON_TENSORS else Handles
    live: list[int] = []
    with _young():
        for _ in range(2):
            playing = player(setting)
            playing.play(item.script)
            found = playing.live()
            live += [] if found is None else [found.live_bytes]
    if len(live) == 2 and live[1] > live[0]:
        text = (
            f"a leak: with everything deleted and collected, {live[0]} bytes were live after the"
            f" script was played once, {live[1]} after it was played again"
        )
        raise Failed(Outcome.MISMATCH, "execute", text)
    return bool(live)


PLAYS: Final = 12
"""How often a script is played while the process is measured, after it was played twice."""
SHARE: Final = 0.1
"""The part of what a script uploads and computes that the process may grow by each time."""
NOTICEABLE: Final = 1 << 20  # bytes that a script must make for that


def _measured(item: Lifetime, setting: Setting) -> bool:
    """Whether the process could be measured; raises ``Failed`` where it grows with every play."""
    sizes = [4 * math.prod(step.shape) for step in item.script if step.do == "upload"]
    made = sum(sizes) + max(sizes, default=0) * sum(len(step.gives) for step in item.script)
    before = resident()
    if item.kind != "memory" or made < NOTICEABLE or before is None:
        return False
    with _young():
        for _ in range(PLAYS):
            Handles(setting).play(item.script)
    grown = (resident() or 0) - before
    if grown > SHARE * PLAYS * made:
        text = (
            f"a leak: with everything deleted and collected each time, the process grew by {grown}"
            f" bytes while the script, which makes {made}, was played {PLAYS} times; the backend"
            " does not report live bytes"
        )
        raise Failed(Outcome.MISMATCH, "execute", text)
    return True


def resident() -> int | None:
    """The bytes of memory that the process has now; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


@contextmanager
def _young() -> Iterator[None]:
    """Collecting garbage does not look at what exists now, which takes long in large processes."""
    if gc.get_freeze_count():  # unfreeze() would let loose what somebody else froze, too
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def told(item: Lifetime) -> Iterator[str]:
    """Everything about a row, as lines of text."""
    yield f"{item.call}; played twice, against NumPy"
    yield "rule: every look finds what NumPy has; afterwards no more bytes are live than before"
    for number, step in enumerate(item.script, 1):
        yield f"  {number}. {step}"
    compiled = ((s.recipe, s.shape) for s in item.script if s.do == "compile")
    for recipe, shape in dict.fromkeys(compiled):
        yield f"{recipe!r}:"
        yield from (f"  {line}" for line in str(program(recipe, shape)).splitlines())
