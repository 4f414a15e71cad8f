"""Running items in processes of their own, so that a crash or a hang costs one case, not the run.

Each worker opens the target by name, takes batches over a pipe and sends a row for every item. One
that dies or stays silent for too long loses the item it was at; a fresh worker goes on, also for
one that has lost its device. An item whose worker was killed from outside is tried once more before
that counts as a crash, and one that was run together with others is first tried alone: any of them
may have been it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import numpy as np

from ptir.backend import Backend, Target, registry
from ptir.errors import DeviceLost
from ptir_testsuite.corpus.models import ModelRun
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.execute import Setting
from ptir_testsuite.running.items import Item, group_of, groups, profiles, run_group, spoken
from ptir_testsuite.running.modules import import_all
from ptir_testsuite.running.outcomes import Outcome, Row

BATCH: Final = 64  # items that a worker is given at a time
LOOK: Final = 1.0  # seconds between two looks at what the workers say
MODEL: Final = 10  # times as long as a case a whole model may take
START: Final = 120.0  # seconds in which a worker must have opened its device
READY: Final = "ready"
LOST: Final = "lost"
"""What a worker says beside rows; anything else is what failed in the suite."""
REFERENCE: Final = "ptir_backend_ref"
"""The package that a worker can no longer import when it has opened another backend."""

PROCESSES: Final = threading.RLock()
"""Held while processes are started or waited for: to start one asks for the ends of all others."""

OUTSIDE: Final = frozenset(("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"))
"""Signals that somebody else sends; what a backend does to its own process has other ones."""


@dataclass(frozen=True)
class Order:
    """What a worker needs: the backend's name, modules that define ops, claims, and terms.

    ``made_by`` is a class to make the backend of instead, importable by workers. With ``imported``
    they are copies of a process that has these modules and has done nothing else (on Linux, and
    one process for all orders), with the variables of the environment that there are now.
    """

    backend: str
    imports: tuple[str, ...]
    claims: frozenset[str]
    terms: Terms
    made_by: Callable[[], Backend] | None = None
    at_once: bool = False
    imported: tuple[str, ...] = ()

    def setting(self) -> Setting:
        """Open the target; raises ``BackendUnavailable``."""
        import_all(self.imports)
        if self.made_by is None:
            target = registry.get(self.backend)
        else:
            backend = self.made_by()
            target = Target(backend, backend.devices()[0])
        return Setting(target, self.claims, self.terms, self.imports, self.at_once)


class SuiteDefect(Exception):  # noqa: N818  not an error of the backend under test
    """The suite itself failed on an item; says where."""


def serve(order: Order, pipe: Connection, environment: Mapping[str, str]) -> None:
    """The loop of a worker: batches in, rows out, until it is told to stop."""
    os.environ.clear()
    os.environ.update(environment)
    setting = order.setting()
    if REFERENCE not in sys.modules:
        sys.modules[REFERENCE] = None  # type: ignore[assignment]  # nobody can hand work to it now
    pipe.send(READY)
    while (batch := pipe.recv()) is not None:
        for group in groups(batch, order.at_once):
            try:
                for row in run_group(group, setting):
                    pipe.send(row)
                    if row.outcome is Outcome.ERROR and _is_lost(setting):
                        pipe.send(LOST)
                        return
            except Exception:  # noqa: BLE001  reported whole by the parent
                names = " ".join(item.id for item in group)
                pipe.send(f"{names}\n{traceback.format_exc()}")


def _is_lost(setting: Setting) -> bool:
    """Whether the process has lost its device for good, as CUDA's do by one stray access."""
    backend, device = setting.target.backend, setting.target.device
    try:
        backend.upload(np.zeros(1, np.float32), device)
        backend.synchronize(device)
    except DeviceLost:
        return True
    except Exception:  # noqa: BLE001  the next case says what is wrong
        return False
    return False


@dataclass
class _Worker:
    """One process, its pipe, what it was given and for how long it has said nothing."""

    process: Any
    pipe: Connection
    pending: deque[Item] = field(default_factory=deque)
    silent: float = 0.0
    ready: bool = False

    def ended(self, timeout: float | None = None) -> None:
        """Wait for the end of the process."""
        with PROCESSES:
            self.process.join(timeout)


def run_in_processes(
    items: Sequence[Item], order: Order, jobs: int, timeout: float
) -> Iterator[Row]:
    """A row for every item, as they come in; raises ``SuiteDefect`` where the suite failed."""
    pool = _Pool(items, order, timeout)
    try:
        yield from pool.rows(jobs)
    finally:
        pool.close()


class _Pool:
    """The workers of a run and the items that are left."""

    def __init__(self, items: Sequence[Item], order: Order, timeout: float) -> None:
        self.left: deque[Item] = deque(items)
        self.order, self.timeout = order, timeout
        self.workers: list[_Worker] = []
        self.killed: dict[str, str] = {}
        self.alone: set[str] = set()
        self.looked = time.monotonic()

    def rows(self, jobs: int) -> Iterator[Row]:
        for _ in range(min(jobs, max(1, len(self.left)))):
            self._start()
        while self.workers:
            ready = wait([w.pipe for w in self.workers], timeout=LOOK)
            for worker in [w for w in self.workers if w.pipe in ready]:
                yield from self._receive(worker)
            yield from self._overdue()

    def close(self) -> None:
        """Stop every process."""
        for worker in self.workers:
            self._stop(worker)
        self.workers = []

    def _start(self) -> None:
        context: Any = _context(self.order.imported)
        ours, theirs = context.Pipe()
        given = self.order, theirs, dict(os.environ)
        process = context.Process(target=serve, args=given, daemon=True)
        with PROCESSES, _deaf():
            process.start()
        theirs.close()
        self.workers.append(_Worker(process, ours))

    def _stop(self, worker: _Worker) -> None:
        worker.process.kill()
        worker.ended()
        worker.pipe.close()

    def _receive(self, worker: _Worker) -> Iterator[Row]:
        worker.silent = 0.0
        try:
            message = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.ended(LOOK)  # what it died of is told by its own exit code
            yield from self._lost(worker, Outcome.CRASH)
            return
        if message == LOST:
            self._replaced(worker)
            return
        if isinstance(message, str) and message != READY:
            raise SuiteDefect(message)
        if isinstance(message, Row):
            worker.pending.popleft()
            yield self._told(message)
        worker.ready = True
        if not worker.pending:
            self._feed(worker)

    def _feed(self, worker: _Worker) -> None:
        batch = self._batch()
        if not batch:
            worker.pipe.send(None)
            worker.ended()
            worker.pipe.close()
            self.workers.remove(worker)
            return
        worker.pending.extend(batch)
        worker.pipe.send(batch)

    def _batch(self) -> list[Item]:
        """The next items for a worker; one that is to run by itself is a batch of its own."""
        if self.left and self._by_itself(self.left[0]):
            return [self.left.popleft()]
        batch: list[Item] = []
        while self.left and not self._by_itself(self.left[0]):
            if len(batch) >= BATCH and not self._together(batch[-1], self.left[0]):
                break
            batch.append(self.left.popleft())
        return batch

    def _together(self, one: Item, other: Item) -> bool:
        """Whether items must not be divided: what only may be run at once may be divided."""
        return group_of(one) == group_of(other)

    def _by_itself(self, item: Item) -> bool:
        """Models are minutes of work each: in one batch they would keep one worker busy alone."""
        return item.id in self.alone or isinstance(item, ModelRun)

    def _overdue(self) -> Iterator[Row]:
        """Give up workers that were silent too long while somebody listened.

        Where this process itself was held up (a machine put to sleep, a slow reader of the rows),
        a worker may well have spoken: such a time counts as a single look.
        """
        now = time.monotonic()
        passed, self.looked = min(now - self.looked, LOOK), now
        for worker in list(self.workers):
            worker.silent += passed
            least = 0.0 if worker.ready else START
            current = worker.pending[0] if worker.pending else None
            if worker.silent > max(least, self.patience(current)):
                yield from self._lost(worker, Outcome.TIMEOUT)

    def patience(self, item: Item | None) -> float:
        """Seconds that a worker may be silent at an item; a model is many programs to compile."""
        return self.timeout * (MODEL if isinstance(item, ModelRun) else 1)

    def _told(self, row: Row) -> Row:
        """The row, which says so where it is that of a second attempt."""
        cause = self.killed.get(row.case)
        return row if cause is None else replace(row, facts={**row.facts, "killed_before": cause})

    def _lost(self, worker: _Worker, outcome: Outcome) -> Iterator[Row]:
        """Blame the item that the worker was at, and let a fresh worker do the rest."""
        self._stop(worker)
        self.workers.remove(worker)
        if not worker.ready:
            code = worker.process.exitcode
            raise SuiteDefect(f"a worker ended (exit code {code}) before it had opened its device")
        cause = killer(worker.process.exitcode) if outcome is Outcome.CRASH else ""
        group = next(groups(worker.pending, self.order.at_once), ())
        if len(group) > 1:
            self.alone |= {item.id for item in group}
        elif worker.pending and cause and worker.pending[0].id not in self.killed:
            self.killed[worker.pending[0].id] = cause
        elif worker.pending:
            yield self._told(_blamed(worker.pending.popleft(), outcome, worker, self))
        self._go_on(worker)

    def _replaced(self, worker: _Worker) -> None:
        """A worker that has lost its device hands what it did not begin to a fresh one."""
        self._stop(worker)
        self.workers.remove(worker)
        self._go_on(worker)

    def _go_on(self, worker: _Worker) -> None:
        """A fresh worker for what one that is gone has left."""
        self.left.extendleft(reversed(worker.pending))
        if self.left:
            self._start()


def _context(imported: Sequence[str]) -> Any:
    """How processes are started: from nothing, or as copies of one that has imported modules."""
    if not imported or sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *imported])
    return context


def killer(exitcode: int | None) -> str:
    """The signal from outside that ended a process, or nothing where it ended by itself."""
    name = signal_of(exitcode)
    return name if name in OUTSIDE else ""


def signal_of(exitcode: int | None) -> str:
    """The name of the signal that ended a process, or nothing where it ended by itself."""
    return {-s.value: s.name for s in signal.Signals}.get(exitcode or 0, "")


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started here do not hear Ctrl-C, which is for the one that collects the rows.

    Python's own helper process comes first: starting it lets the signal through again.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _blamed(item: Item, outcome: Outcome, worker: _Worker, pool: _Pool) -> Row:
    code = worker.process.exitcode
    named = f" ({signal_of(code)})" if signal_of(code) else ""
    crashed = f"the process died with exit code {code}{named}"
    text = crashed if outcome is Outcome.CRASH else f"no answer within {pool.patience(item):g} s"
    op, call, dtypes = spoken(item)
    found = profiles(item)
    message = f"{call}: {text}\n  case {item.id}"
    claimed = found <= pool.order.claims
    return Row(
        item.id, op, call, dtypes, tuple(sorted(found)), outcome, "execute", message, claimed
    )
