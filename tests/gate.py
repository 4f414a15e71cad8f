"""What of the tests the gate runs: a pytest plugin that ``conftest.py`` loads.

``PTIR_SLICE=K`` (``make test`` sets it) runs a slice. Of a test marked ``slice(n)`` it holds n
parameter sets, chosen so that they meet as many values of each parameter as n sets can, others for
each K; of a module marked ``turns(n)``, one test in n; of tests that another folder collects again,
one in ``AGAIN`` there; of a test that takes several times ``LONG``, by ``timings.json``, one in as
many; of those in ``proof_only.py`` nothing. Without the variable all run (``make prove``).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import pytest

from proof_only import PROOF_ONLY
from units import function, timings

SLICE: Final = "PTIR_SLICE"
AGAIN: Final = 3
"""Of tests that another folder collects again, for its device, a slice holds one in so many.

They stand whole where they are written, and CI runs a slice of the corpus on each device.
"""
LONG: Final = 0.5
"""Seconds that one parameter set of a test costs a slice, on average over slices.

What takes n times as long is in one slice of n, so that a test pays for its length by itself.
"""
ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
"""What a function's text has beside its name, and no two processes have alike."""

MARKS: Final = (
    "slice(n): of its parameter sets the gate runs n, others for each PTIR_SLICE",
    "turns(n): of a module's tests the gate runs one in n, others for each PTIR_SLICE",
)


def seed() -> int | None:
    """The number of the slice; None where everything runs."""
    text = os.environ.get(SLICE, "")
    if not text:
        return None
    if not text.isdecimal():
        raise pytest.UsageError(f"{SLICE}={text!r}: a number picks the slice; unset runs all tests")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    seed()


def pytest_report_header() -> str:
    number = seed()
    if number is None:
        return f"{SLICE} is not set: every test runs"
    return f"{SLICE}={number}: a slice; the same number repeats it, `make prove` runs every test"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number = seed()
    if number is not None:
        kept = set(sliced(items, number))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


# --- the slice ---


def sliced(items: Iterable[pytest.Item], number: int) -> Iterator[pytest.Item]:
    """The items of slice ``number``, in order."""
    seconds = timings()
    for name, group in groupby(items, function):
        alike = list(group)
        if _place(alike[0]) in PROOF_ONLY:
            continue
        mark = alike[0].get_closest_marker("slice")
        if mark is not None and not hasattr(alike[0], "callspec"):
            raise pytest.UsageError(
                f"{name}: slice(n) is for tests with parameters; see proof_only.py"
            )
        count = len(alike) if mark is None else mark.args[0]
        turns = alike[0].get_closest_marker("turns")
        one_in = max(turns.args[0] if turns else 1, round(seconds.get(name, 0.0) / LONG))
        if _collected_again(alike[0]):
            one_in *= AGAIN
        count, turn = share(count, one_in, number, name)
        if count >= len(alike):
            yield from alike
        elif count:
            places = chosen([_values(item) for item in alike], count, turn, name)
            yield from (alike[place] for place in sorted(places))


def _collected_again(item: Any) -> bool:
    """Whether the item's function is written in another module of tests than the one it is in."""
    return bool(item.function.__module__ != item.module.__name__)


def share(count: int, one_in: int, number: int, name: str) -> tuple[int, int]:
    """One in so many of ``count`` sets, what is over in turn, and the number to choose them by.

    That is another only after ``one_in`` slices: a single set must not meet one turn each time.
    """
    turn = (number + int.from_bytes(_hash(name), "little")) % one_in
    return (count + turn) // one_in, number // one_in


def turn_of(number: int, one_in: int) -> int:
    """Which of so many turns a slice has; as many slices in a row have each of them once.

    Each round of them begins elsewhere: what runs only in every second slice meets all turns too.
    """
    round_, place = divmod(number, one_in)
    return (place + int.from_bytes(_hash(str(one_in), str(round_)), "little")) % one_in


def chosen(rows: Sequence[Sequence[str]], count: int, number: int, name: str = "") -> list[int]:
    """The places of ``count`` rows that meet as many of the values as so many rows can.

    Slices with successive numbers begin with another row each, so that as many slices as there are
    rows meet every row; ``name`` makes the order, so that like tests do not choose alike.
    """
    mixed = sorted(range(len(rows)), key=lambda place: _hash(name, *rows[place], str(place)))
    turn = number % len(mixed)
    left = mixed[turn:] + mixed[:turn]
    found: list[int] = []
    met: set[str] = set()
    while left and len(found) < count:
        best = max(left, key=lambda place: len(set(rows[place]) - met))  # the first of the best
        best = best if found else left[0]
        left.remove(best)
        found.append(best)
        met.update(rows[best])
    return found


def _place(item: pytest.Item) -> str:
    """The name of an item's function, as ``PROOF_ONLY`` has it."""
    return function(item).partition("tests/")[2]


def _values(item: Any) -> tuple[str, ...]:
    """The values of an item's parameters, the same in every process."""
    values = item.callspec.params.items()
    return tuple(f"{name}={ADDRESS.sub('', repr(value))}" for name, value in values)


def _hash(*texts: str) -> bytes:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest()
