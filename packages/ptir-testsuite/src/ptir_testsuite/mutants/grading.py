"""Grading many faults at a time: those with processes of their own beside those that need none.

A fault in a reference runs in this process, one after the other. An impostor, or a fault in the
generator, has a worker, for which a thread of this process waits. Each is graded as it is alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ptir_testsuite.mutants.harness import Row
from ptir_testsuite.mutants.planting import KernelGrade, Planted, grade_planted
from ptir_testsuite.mutants.score import Grade, Unmasked, grade, slice_of, unmask

Task = Callable[[], Any]


@dataclass(frozen=True)
class Grades:
    """What became of faults in references, of impostors, of faults in generated kernels."""

    faults: tuple[Grade, ...]
    impostors: tuple[Unmasked, ...]
    kernels: tuple[KernelGrade, ...]


def graded(
    faults: Sequence[Row],
    impostors: Sequence[str],
    kernels: Sequence[Planted],
    *,
    timeout: float = 2.0,
    number: int | None = None,
    jobs: int = 1,
) -> Grades:
    """The grades, each in the order of what was given, by the corpus or by slice ``number`` of it.

    ``timeout`` is in seconds, and for a case of an impostor; ``jobs`` are graded at a time.
    """
    if number is not None:
        slice_of(number)  # known before threads ask for it
    here = [partial(grade, row, number) for row in faults]
    apart: list[Task] = [partial(unmask, name, timeout, number) for name in impostors]
    apart += [partial(grade_planted, row, number=number) for row in kernels]
    first, others = side_by_side(here, apart, jobs)
    unmasked, planted = others[: len(impostors)], others[len(impostors) :]
    return Grades(tuple(first), tuple(unmasked), tuple(planted))


def side_by_side(
    here: Sequence[Task], apart: Sequence[Task], jobs: int
) -> tuple[list[Any], list[Any]]:
    """What tasks give, in their order: those of ``here`` by this thread, then the rest with others.

    ``apart`` are begun in order by ``jobs`` - 1 threads beside this one. What any task raises ends
    all: nothing more is begun, and it is raised here. Ctrl-C does not wait for what is begun.
    """
    left, failed = deque(enumerate(apart)), list[Exception]()
    found: dict[int, Any] = {}

    def work() -> None:
        while left and not failed:
            try:
                place, task = left.popleft()
            except IndexError:  # another thread was quicker
                return
            found[place] = task()

    def beside() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  raised again by the thread that asked
            failed.append(error)

    threads = [threading.Thread(target=beside, daemon=True) for _ in range(jobs - 1)]
    for thread in threads:
        thread.start()
    try:
        first = [task() for task in here if not failed]
        work()
        for thread in threads:
            thread.join()
    finally:
        left.clear()
    if failed:
        raise failed[0]
    return first, [found[place] for place in range(len(apart))]
