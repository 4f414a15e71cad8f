"""Runs independent pieces of work on a few threads; NumPy releases the GIL inside its loops.

Pieces are cut by shape alone and write to places of their own, so the number of threads
(``PTIR_NUM_THREADS``, by default the CPUs this process may use) never changes a result.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

import numpy as np

from ptir.errors import UsageError
from ptir.params.processors import usable_processors

Task = Callable[[], None]

BLOCK: Final = 1 << 14  # elements of one piece: its temporaries stay in a core's cache
PARALLEL: Final = 1 << 17  # elements from which waking a thread pays


@functools.cache
def thread_count() -> int:
    """Threads to use, the caller's included; raises ``UsageError`` for a bad PTIR_NUM_THREADS."""
    text = os.environ.get("PTIR_NUM_THREADS", "")
    if not text:
        return usable_processors()
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"PTIR_NUM_THREADS is {text!r}; give a whole number from 1")
    return int(text)


class _Job:
    """Tasks that several threads take from one iterator; ``done`` gets an entry for each."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.pending = iter(tasks)
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()

    def work(self) -> None:
        """Run tasks until none is left."""
        with np.errstate(all="ignore"):  # which is a setting of each thread
            for task in self.pending:
                self.done.put(_error_of(task))


def _error_of(task: Task) -> BaseException | None:
    try:
        task()
    except BaseException as error:  # noqa: BLE001  # raised again by run_all
        return error
    return None


@functools.cache
def _jobs() -> SimpleQueue[_Job]:
    """The queue that the helper threads, started here, wait on (asleep)."""
    jobs: SimpleQueue[_Job] = SimpleQueue()
    for _ in range(thread_count() - 1):
        Thread(target=_help, args=(jobs,), name="ptir-ref", daemon=True).start()
    return jobs


def _help(jobs: SimpleQueue[_Job]) -> None:
    while True:
        jobs.get().work()


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_jobs.cache_clear)


def run_all(tasks: Sequence[Task]) -> None:
    """Run every task, on several threads when there are any; an error of one is raised.

    Much like an executor's ``map``, at a third of its cost per call; never waits for a helper that
    came too late to find a task.
    """
    job = _Job(tasks)
    for _ in range(min(thread_count(), len(tasks)) - 1):
        _jobs().put(job)
    job.work()
    errors = [job.done.get() for _ in tasks]
    for error in filter(None, errors):
        raise error


def over_rows(piece: Callable[[int, int], None], rows: int, width: int) -> None:
    """Call ``piece(first, end)`` on blocks of ``rows`` rows of ``width`` elements each."""
    if rows * width <= BLOCK:
        piece(0, rows)
        return
    step = max(1, BLOCK // max(1, width))
    bounds = [(first, min(first + step, rows)) for first in range(0, rows, step)]
    if rows * width < PARALLEL:
        for first, end in bounds:
            piece(first, end)
    else:
        run_all([functools.partial(piece, first, end) for first, end in bounds])


# --- BLAS threads: none of its own while ours run ---


@functools.cache
def _openblas() -> tuple[Any, Any] | None:
    """OpenBLAS's getter and setter of its thread count, found through NumPy; None without it."""
    library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    for pattern in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads"):
        found = [getattr(library, pattern.format(verb), None) for verb in ("get", "set")]
        if all(found):
            return found[0], found[1]
    return None


def blas_is_tamed() -> bool:
    """Whether ``single_threaded_blas`` has an effect here."""
    return _openblas() is not None


_lock = Lock()
_users = 0
_before = 1


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """BLAS calls inside (and, unavoidably, in other threads meanwhile) use one thread."""
    blas = _openblas()
    if blas is None:
        yield
        return
    _enter(*blas)
    try:
        yield
    finally:
        _leave(blas[1])


def _enter(get: Any, put: Any) -> None:
    global _users, _before
    with _lock:
        if _users == 0:
            _before = get()
            put(1)
        _users += 1


def _leave(put: Any) -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            put(_before)
