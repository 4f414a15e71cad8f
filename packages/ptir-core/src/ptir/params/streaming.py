"""Parameters under a budget: resident while launches read them, and fetched ahead of that.

Where a parameter comes from is an array of a mapped file, the model's own or one of
``ptir.runtime.prepacked``. Where a device reads the host's memory, its pages are what comes and
goes; elsewhere it is copied to the device, beside what the device computes.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ptir.errors import PtirError, UsageError
from ptir.params.mapped_files import check_whole
from ptir.params.pages import DiskWatch, MappedPages, mapping_of
from ptir.params.residency import ResidentSet
from ptir.params.source import Array, Counters
from ptir.units import EXPLAINED, bytes_of

FRACTION: Final = 4
"""The part of a budget above which a weight is cut: two and what else there is fit beside it."""
FINEST: Final = 1
"""Bytes that ask for as few rows as can be cut off."""


class BudgetError(UsageError):
    """A program does not run in its budget; the ``smallest`` that it does with is known.

    ``room`` bytes are left for its parameters, which are those of ``stream``.
    """

    def __init__(self, message: str, smallest: int, room: int, stream: StreamedParameters) -> None:
        super().__init__(message)
        self.smallest, self.room, self.stream = smallest, room, stream


@dataclass(frozen=True)
class Savings:
    """What makes a model need less memory, as options that it has a use for.

    ``state`` make what it carries from step to step smaller, ``weights`` its parameters.
    """

    state: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()


def alternatives(advice: Sequence[str]) -> str:
    """What goes behind advice to give more: ``, or A, B or C``; nothing where there is none."""
    if not advice:
        return ""
    *others, last = advice
    return f", or {', '.join(others)} or {last}" if others else f", or {last}"


def memory_budget(given: str | int) -> int:
    """Bytes of a budget: a whole number, or a text such as ``2GiB``; raises ``UsageError``."""
    try:
        if isinstance(given, bool):
            raise ValueError("is no number of bytes above 0")
        nbytes = bytes_of(str(given))
    except ValueError as error:
        raise UsageError(
            f"device memory {given!r}: {error}; give bytes as a number above 0, alone or with a"
            f" unit: {EXPLAINED}, such as 2GiB"
        ) from None
    if nbytes < 1:
        raise UsageError(
            f"device memory {given!r}: that is {nbytes} bytes, and parameters and caches need some;"
            " give more, such as 2GiB, or leave it out"
        )
    return nbytes


class _Parameter:
    """One parameter: where it comes from, and its handle while it is resident."""

    def __init__(self, array: Array) -> None:
        self.array, self.pages = array, MappedPages.of(array)
        self.handle: Any = None
        self.coming: Any = None
        self._joined = True

    def fetch(self, target: Any) -> None:
        """Have a handle. What is queued may still use the memory, so ``begin`` starts the copy."""
        if self.handle is None:
            self.coming = target.backend.prefetch(self.array, target.device)
            self.handle = self.coming.handle
        self._joined = False

    def begin(self, from_disk: bool) -> None:
        """Start what brings the values."""
        if from_disk and self.pages is not None:
            self.pages.read_ahead()
        self.coming.begin()

    def join(self) -> None:
        """What is queued from now on finds the values."""
        if not self._joined:
            self.coming.join()
            self._joined = True

    def drop(self) -> None:
        """Give up the memory: the pages where the handle is nothing but these, else the copy."""
        if self.coming is None:
            return
        self.join()
        if not self.coming.shared:
            self.handle = self.coming = None
        if self.pages is not None:
            self.pages.drop()


class StreamedParameters:
    """The parameters of a model that share ``budget`` bytes with its caches and intermediates.

    ``counters`` count how often each was fetched, ``resident`` knows what there is now and the most
    that there was, ``savings`` what to do where the budget is too small. ``lock`` is held by a run:
    one goes at a time. What is read of one weight at a time has at most ``largest`` bytes, where
    rows can be cut; finer cuts make programs stale.
    """

    def __init__(self, budget: int, target: Any) -> None:
        self.budget = budget
        self.savings = Savings()
        self.largest = self._coarsest
        self._users: list[weakref.ref[Any]] = []
        self.counters = Counters()
        self.resident = ResidentSet()
        self.lock = threading.RLock()
        self._target = target
        self._incarnation = target.backend.incarnation(target.device)
        self._parameters: dict[str, _Parameter] = {}
        self._mappings: dict[int, mmap.mmap] = {}
        self._disk = DiskWatch()
        self._workspaces: dict[int, tuple[object, int]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether it is known where a parameter comes from."""
        return name in self._parameters

    def hold(self, name: str, array: Array) -> None:
        """Know where a parameter comes from."""
        self._parameters.setdefault(name, _Parameter(array))
        mapping = mapping_of(array)
        if mapping is not None:
            self._mappings[id(mapping)] = mapping

    def add_user(self, plan: Any) -> None:
        """Know of a program that uses the parameters."""
        self._users.append(weakref.ref(plan))

    def add_workspace(self, executable: object, nbytes: int) -> None:
        """Know of the memory that a program holds as long as it lives."""
        self._workspaces[id(executable)] = executable, nbytes

    def cut_finer(self, room: int) -> bool:
        """Cut into less, now that a program had only ``room`` bytes for its parameters.

        No where there is nothing finer. Else programs that are compiled are stale.
        """
        if self.largest <= FINEST:
            return False
        self.largest = room // 2 if FINEST < room // 2 < self.largest else FINEST
        return True

    @property
    def _coarsest(self) -> int:
        return max(FINEST, self.budget // FRACTION)

    def cut_as_at_first(self) -> None:
        """Cut coarsely again."""
        self.largest = self._coarsest

    def forget_users(self) -> tuple[list[Any], list[Any]]:
        """The programs that use the parameters and their executables: these count no longer."""
        users = [plan for user in self._users if (plan := user()) is not None]
        executables = [executable for executable, _ in self._workspaces.values()]
        self._users.clear()
        self._workspaces.clear()
        return users, executables

    @property
    def workspaces(self) -> int:
        """Bytes that programs hold."""
        return sum(nbytes for _, nbytes in self._workspaces.values())

    def check_whole(self) -> None:
        """Raise ``CheckpointError`` where a file that parameters come from was cut."""
        check_whole(self._mappings.values())

    def renew(self) -> None:
        """Forget what was on a device that was lost since."""
        incarnation = self._target.backend.incarnation(self._target.device)
        if incarnation != self._incarnation:
            self._parameters = {n: _Parameter(p.array) for n, p in self._parameters.items()}
            self.resident.clear()
            self._incarnation = incarnation

    def enter(
        self, needed: Mapping[str, int], following: Mapping[str, int], room: int
    ) -> tuple[dict[str, Any], list[_Parameter]]:
        """The handles of what is ``needed`` now, and what of the ``following`` is to begin coming.

        That has its memory already: it begins once what reads the needed is queued. Raises
        ``CheckpointError`` where a file that parameters come from was cut.
        """
        self.check_whole()
        every = self._parameters
        self.begin(self._moved(needed, room))
        for name in needed:
            every[name].join()
        ahead = self._moved(following, room, tuple(needed))
        return {name: every[name].handle for name in needed}, ahead

    def begin(self, coming: Sequence[_Parameter]) -> None:
        """Start what brings them."""
        from_disk = bool(coming) and self._disk.reads()
        for parameter in coming:
            parameter.begin(from_disk)

    def _moved(
        self, wanted: Mapping[str, int], room: int, kept: Sequence[str] = ()
    ) -> list[_Parameter]:
        moves = self.resident.use(wanted, room, kept)
        for name in moves.dropped:
            self._parameters[name].drop()
        fetched = [self._parameters[name] for name in moves.fetched]
        for name, parameter in zip(moves.fetched, fetched, strict=True):
            parameter.fetch(self._target)
            self.counters.record(name, wanted[name])
        return fetched

    def make_room(self, nbytes: int) -> None:
        """Drop as much as it takes for something else of so many bytes."""
        with self.lock:
            for name in self.resident.shrink(self.budget - self.workspaces - nbytes):
                self._parameters[name].drop()

    def drop_all(self) -> None:
        """Give up everything: what comes next needs the memory, or a run ended in an error."""
        with self.lock:
            names = [*self.resident]
            self.resident.clear()
            for name in names:
                with suppress(PtirError):  # what was not fetched, on a device that is lost
                    self._parameters[name].drop()
            self._parameters = {n: _Parameter(p.array) for n, p in self._parameters.items()}
