"""Playing a script on the handles and executables of a backend, beside a dictionary of arrays."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import numpy as np

from ptir.backend import MemoryStats, Options
from ptir.backend.contract import Executable
from ptir.errors import UnsupportedError
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir_testsuite.corpus.layouts import LAYOUTS, memory_of, scribble
from ptir_testsuite.corpus.recipes import arrays, program
from ptir_testsuite.corpus.scripts import ALIASED, DONATIONS, SPENT, THREADS, Step
from ptir_testsuite.corpus.values import Draws
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.fences import PATTERNS, soil
from ptir_testsuite.running.outcomes import Outcome
from ptir_testsuite.running.raised import told

T = TypeVar("T")

ROUNDS: Final = 12  # runs of each of several threads
SWITCH: Final = 1e-5  # seconds after which Python lets another thread run, while threads are tried


def guarded(phase: str, action: Callable[[], T], compiles: bool = False) -> T:
    """The action's value; its exceptions become the outcome ``error`` in ``phase``.

    What ``compiles`` may refuse with ``UnsupportedError``, which is handed on.
    """
    try:
        return action()
    except Exception as error:
        if compiles and isinstance(error, UnsupportedError):
            raise
        raise Failed(Outcome.ERROR, phase, told(phase, error)) from error


def differs(what: str, found: Any, wanted: Array) -> str:
    """How what a backend gave is not what it must be, or nothing."""
    array = np.asarray(found)
    if array.dtype != wanted.dtype or array.shape != wanted.shape:
        return f"{what} is {array.dtype}{list(array.shape)}, not i32{list(wanted.shape)}"
    wrong = np.argwhere(array != wanted)
    if not len(wrong):
        return ""
    at = tuple(int(i) for i in wrong[0])
    return (
        f"{what} is wrong in {len(wrong)} of {wanted.size} elements: {list(at)} is {array[at]}"
        f" and must be {wanted[at]}"
    )


class Player:
    """What is alive, and what it must hold. A step is played by the method of its name."""

    def __init__(self, setting: Setting) -> None:
        self.target, self.setting = setting.target, setting
        self.alive: dict[str, Any] = {}
        self.model: dict[str, Array] = {}
        self.built: dict[str, Any] = {}
        self.start: MemoryStats | None = None

    def play(self, script: Sequence[Step]) -> None:
        """Play all steps; raises ``Failed``, naming the step."""
        self.collect(Step("collect"))
        self.start = self.live()
        for number, step in enumerate(script, 1):
            method: Callable[[Step], None] = getattr(self, step.do.replace(" ", "_"))
            try:
                method(step)
            except Failed as failed:
                text = f"step {number} of {len(script)}, {step}: {failed.message}"
                raise Failed(failed.outcome, failed.phase, text) from failed

    def live(self) -> MemoryStats | None:
        """What the backend says of its memory, if it does."""
        return self.target.backend.memory_stats(self.target.device)

    def values(self, step: Step) -> Array:
        """The elements of an upload: of any bits, the same for the same name."""
        words = Draws("lifetime", step.name).words(int(np.prod(step.shape)))
        return words.astype(np.uint32).view(np.int32).reshape(step.shape)

    def expected(self, step: Step) -> tuple[Array, ...]:
        """What a run must give."""
        a, b = (self.model[name] for name in step.of)
        return arrays(step.recipe, a, b)

    def read(self, name: str) -> Any:
        """The elements of what is called ``name``, as the backend has them."""
        soil(self.model[name].nbytes, PATTERNS[0])
        return self.target.backend.download(self.alive[name], self.target.device)

    def require(self, name: str) -> None:
        """Refuse what does not hold what it must."""
        problem = differs(name, guarded("download", lambda: self.read(name)), self.model[name])
        if problem:
            raise Failed(Outcome.MISMATCH, "download", problem)

    def gained(self, step: Step, found: Sequence[Any]) -> None:
        """Keep the results of a run beside what they must be."""
        expected = self.expected(step)
        if len(found) != len(expected):
            text = f"{len(found)} results, not {len(expected)}"
            raise Failed(Outcome.MISMATCH, "execute", text)
        for place in DONATIONS[step.how]:
            self.lost(step.of[place])
        self.alive |= zip(step.gives, found, strict=True)
        self.model |= zip(step.gives, expected, strict=True)

    def lost(self, name: str) -> None:
        """Forget a handle that was consumed."""
        del self.alive[name], self.model[name]

    # --- steps ---

    def delete(self, step: Step) -> None:
        """Let go of a handle, a tensor or an executable."""
        for held in (self.alive, self.model, self.built):
            held.pop(step.name, None)

    def delete_everything(self, step: Step) -> None:
        """Let go of all that there is."""
        for name in (*self.alive, *self.built):
            self.delete(Step("delete", name))

    def download(self, step: Step) -> None:
        """Look at one."""
        self.require(step.name)

    def check(self, step: Step) -> None:
        """Look at everything."""
        for name in self.alive:
            self.require(name)

    def collect(self, step: Step) -> None:
        """Everything that was let go of is gone."""
        gc.collect()
        self.finish()

    def finish(self) -> None:
        """Wait for the device."""
        guarded("execute", lambda: self.target.backend.synchronize(self.target.device))


class Handles(Player):
    """On the backend itself: its handles and executables."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.lent: dict[str, tuple[Array, bytes]] = {}

    def _array(self, step: Step) -> Array:
        self.model[step.name] = self.values(step)
        return LAYOUTS[step.how](self.model[step.name])

    def upload(self, step: Step) -> None:
        """A copy: what becomes of the host's array afterwards is no matter."""
        array, (backend, device) = self._array(step), (self.target.backend, self.target.device)
        self.alive[step.name] = guarded("upload", lambda: backend.upload(array, device))
        scribble(array)

    def lend(self, step: Step) -> None:
        """Borrowed memory, which nobody may write to, nor beside it."""
        array, (backend, device) = self._array(step), (self.target.backend, self.target.device)
        self.lent[step.name] = array, memory_of(array).tobytes()
        handle = guarded("upload", lambda: backend.upload(array, device, borrow=True))
        self.alive[step.name] = handle

    def compile(self, step: Step) -> None:
        """An executable."""
        backend, device = self.target.backend, self.target.device
        context = PassContext(backend, device)
        aliases = ((0, 1),) if step.how in (ALIASED, SPENT) else ()
        options = Options(donated=DONATIONS[step.how], aliases=aliases)

        def built() -> Executable:
            legal = legalize(program(step.recipe, step.shape), context)
            return backend.compile(legal, device, options)

        self.built[step.name] = guarded("compile", built, compiles=True)

    def run(self, step: Step) -> None:
        """One run; consumed handles are not looked at again."""
        executable: Executable = self.built[step.name]
        handles = [self.alive[name] for name in step.of]
        found = guarded("execute", lambda: executable.run(handles))
        self.gained(step, found)

    def copy(self, step: Step) -> None:
        """Equal elements that share nothing."""
        (source,), (name,) = step.of, step.gives
        backend, device = self.target.backend, self.target.device
        self.alive[name] = guarded("execute", lambda: backend.copy(self.alive[source], device))
        self.model[name] = self.model[source]

    def check(self, step: Step) -> None:
        """Look at everything, and at the memory that is lent."""
        super().check(step)
        for name in self.lent:
            self._still(name)

    def delete(self, step: Step) -> None:
        """Let go of it; of lent memory when nothing that reads it is under way any more."""
        super().delete(step)
        if step.name in self.lent:
            self.finish()
            self._still(step.name)
            del self.lent[step.name]

    def _still(self, name: str) -> None:
        array, before = self.lent[name]
        if memory_of(array).tobytes() != before:
            text = f"the memory lent for {name}, or memory beside it, was written to"
            raise Failed(Outcome.MISMATCH, "execute", text)

    def grown(self, step: Step) -> None:
        """The bytes of all handles are in use, and were at some time."""
        before, now = self.start, self.live()
        if before is None or now is None:
            return
        least = sum(array.nbytes for array in self.model.values())
        if now.live_bytes - before.live_bytes < least or now.peak_bytes < now.live_bytes:
            text = (
                f"live bytes went from {before.live_bytes} to {now.live_bytes}, peak"
                f" {now.peak_bytes}; there are {least} bytes of handles more than there were"
            )
            raise Failed(Outcome.MISMATCH, "execute", text)

    def threads(self, step: Step) -> None:
        """Several threads run one executable at the same time, each on handles of its own."""
        executable: Executable = self.built[step.name]
        pairs = [step.of[n : n + 2] for n in range(0, len(step.of), 2)]
        donates = 0 in DONATIONS.get(step.how, ())

        def runs(number: int) -> None:
            handles = [self.alive[name] for name in pairs[number]]
            given = [self.model[name] for name in pairs[number]]
            for turn in range(ROUNDS):
                wanted = arrays(step.recipe, *given)
                found = guarded("execute", lambda: executable.run(handles))
                for place, (handle, array) in enumerate(zip(found, wanted, strict=True)):
                    what = f"result {place} of run {turn + 1} of thread {number + 1}"
                    self._same(what, handle, array)
                if donates:  # what it was given is gone
                    handles[0], given[0] = found[0], wanted[0]
            self.alive[pairs[number][0]], self.model[pairs[number][0]] = handles[0], given[0]

        at_once(runs)

    def repeat(self, step: Step) -> None:
        """Several runs in one call, each with the first result of the one before in a's place."""
        executable: Executable = self.built[step.name]
        handles = [self.alive[name] for name in step.of]
        given, kept = [self.model[name] for name in step.of], list[Array]()
        wanted: tuple[Array, ...] = ()
        for _ in range(step.turns):
            wanted = arrays(step.recipe, *given)
            given[0] = wanted[0]
            kept.append(wanted[-1])
        last = len(wanted) - 1
        every, results = guarded(
            "execute", lambda: executable.repeat(handles, ((0, 0),), step.turns, last)
        )
        if len(every) != step.turns or len(results) != len(wanted):
            text = f"{len(every)} kept and {len(results)} results, not {step.turns}, {len(wanted)}"
            raise Failed(Outcome.MISMATCH, "execute", text)
        for place in DONATIONS[step.how]:
            self.lost(step.of[place])
        self.alive |= zip(step.gives, (*results, *every), strict=True)
        self.model |= zip(step.gives, (*wanted, *kept), strict=True)

    def _same(self, what: str, handle: Any, wanted: Array) -> None:
        backend, device = self.target.backend, self.target.device
        found = guarded("download", lambda: backend.download(handle, device))
        problem = differs(what, found, wanted)
        if problem:
            raise Failed(Outcome.MISMATCH, "execute", problem)


def at_once(action: Callable[[int], None]) -> None:
    """``action(number)`` in every thread at the same time; raises what the first one raised."""
    began = threading.Barrier(THREADS)
    problems: list[Failed | UnsupportedError] = []

    def thread(number: int) -> None:
        try:
            began.wait()
            action(number)
        except (Failed, UnsupportedError) as problem:
            problems.append(problem)
        except Exception as error:  # noqa: BLE001  told by the thread that waits
            failed = Failed(Outcome.ERROR, "execute", told("a thread", error))
            failed.__cause__ = error
            problems.append(failed)

    with _switching(SWITCH):
        started = [threading.Thread(target=thread, args=(n,)) for n in range(THREADS)]
        for one in started:
            one.start()
        for one in started:
            one.join()
    if problems:
        raise problems[0]


@contextmanager
def _switching(seconds: float) -> Iterator[None]:
    """Python changes threads as often as this."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
