"""Work in processes that are watched: what crashes or hangs costs one piece of it, and is told."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

BATCH = 250
"""Pieces of a process, after which a fresh one takes over: nothing adds up for long."""
START = 120.0
"""Seconds until the first answer, in which everything is imported."""


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    left: deque[int]
    heard: float = field(default_factory=time.monotonic)
    started: bool = False
    gone: bool = False


Work = Callable[[int], str]


def watched(
    make: Callable[..., Work],
    arguments: Sequence[Any],
    numbers: Sequence[int],
    *,
    jobs: int,
    timeout: float,
) -> Iterator[tuple[int, str]]:
    """``work(number)`` of each number, where ``work = make(*arguments)``, made in each process.

    What comes instead of a process's answer begins with ``crash`` or ``hang``.
    """
    todo = deque(list(numbers[at : at + BATCH]) for at in range(0, len(numbers), BATCH))
    workers: list[_Worker] = []
    try:
        while todo or workers:
            while todo and len(workers) < jobs:
                workers.append(_started(make, arguments, todo.popleft()))
            ready = wait([worker.pipe for worker in workers], timeout=1.0)
            for worker in list(workers):
                yield from _answers(worker, worker.pipe in ready, timeout)
                if worker.gone or not worker.left:
                    _ended(worker)
                    workers.remove(worker)
                    if worker.left:
                        todo.appendleft(list(worker.left))
    finally:
        for worker in workers:
            _ended(worker)


def _answers(worker: _Worker, ready: bool, timeout: float) -> Iterator[tuple[int, str]]:
    """What a process has said; what it was at, where it can say nothing any more."""
    if ready:
        try:
            while worker.pipe.poll():
                found = worker.pipe.recv()
                worker.heard, worker.started = time.monotonic(), True
                if found is not None:
                    yield worker.left.popleft(), found
        except (EOFError, ConnectionError):
            worker.gone = True
            worker.process.join(5.0)
            code = worker.process.exitcode
            if not worker.started:
                raise RuntimeError(f"a process ended with {code} before its first piece") from None
            if worker.left:
                yield worker.left.popleft(), f"crash: {_cause(code)}"
        return
    if time.monotonic() - worker.heard > (timeout if worker.started else START):
        worker.gone = True
        worker.process.kill()
        yield worker.left.popleft(), f"hang: no answer within {timeout:g} s"


def _cause(code: int) -> str:
    """An exit code, or the signal that it stands for."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _started(make: Callable[..., Work], arguments: Sequence[Any], numbers: list[int]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(make, arguments, numbers, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, deque(numbers))


def _ended(worker: _Worker) -> None:
    if worker.left:
        worker.process.kill()
    worker.process.join()
    worker.pipe.close()


def _serve(
    make: Callable[..., Work], arguments: Sequence[Any], numbers: list[int], pipe: Connection
) -> None:
    work = make(*arguments)
    pipe.send(None)
    for number in numbers:
        pipe.send(work(number))
