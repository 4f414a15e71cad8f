"""What of the tests the gate runs, and in which order: a pytest plugin that ``conftest.py`` loads.

``PTIR_SLICE=K`` (``make test`` sets it) runs a slice. Of a test marked ``slice(n)`` it holds n
parameter sets, chosen so that they meet as many values of each parameter as n sets can, others for
each K; of a module marked ``turns(n)``, one test in n; of tests that another folder collects again,
one in ``AGAIN`` there; of those in ``proof_only.py`` nothing. Without the variable all run
(``make prove``).

The longest go first, by the times in ``timings.json``, so that no worker waits at the end for one
test. ``PTIR_TIMINGS=1`` writes that file anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

from proof_only import PROOF_ONLY

SLICE: Final = "PTIR_SLICE"
TIMINGS: Final = Path(__file__).with_name("timings.json")
AGAIN: Final = 3
"""Of tests that another folder collects again, for its device, a slice holds one in so many.

They stand whole where they are written, and CI runs a slice of the corpus on each device.
"""
ALONE: Final = 2.0
"""Seconds from which a test is handed to a worker by itself, not with the others of its file."""
KEPT: Final = 0.2
"""Seconds of a test's mean from which ``timings.json`` holds it."""

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


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number = seed()
    if number is not None:
        kept = set(sliced(items, number))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    _longest_first(items)


# --- the slice ---


def sliced(items: Iterable[pytest.Item], number: int) -> Iterator[pytest.Item]:
    """The items of slice ``number``, in order."""
    for name, group in groupby(items, _function):
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
        one_in = turns.args[0] if turns else 1
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


def _function(item: pytest.Item) -> str:
    """The name that all parameter sets of a test share."""
    return item.nodeid.partition("[")[0]


def _place(item: pytest.Item) -> str:
    """The name of an item's function, as ``PROOF_ONLY`` has it."""
    return _function(item).partition("tests/")[2]


def _values(item: Any) -> tuple[str, ...]:
    """The values of an item's parameters, the same in every process."""
    values = item.callspec.params.items()
    return tuple(f"{name}={ADDRESS.sub('', repr(value))}" for name, value in values)


def _hash(*texts: str) -> bytes:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest()


# --- the order ---


def _longest_first(items: list[pytest.Item]) -> None:
    """Sort the items by the time of their unit, and name the units to xdist."""
    known = timings()
    units: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        alone = known.get(_function(item), 0.0) >= ALONE and not _shares(item)
        units[item.nodeid if alone else item.nodeid.partition("::")[0]].append(item)
    seconds = {
        unit: sum(known.get(_function(item), 0.0) for item in mine) for unit, mine in units.items()
    }
    ordered = sorted(units, key=lambda unit: -seconds[unit])
    items[:] = [item for unit in ordered for item in units[unit]]
    for number, unit in enumerate(ordered):
        for item in units[unit]:
            item.add_marker(pytest.mark.xdist_group(str(number)))


def _shares(item: Any) -> bool:
    """Whether the item needs something that is made once for its module."""
    found = item._fixtureinfo.name2fixturedefs
    return any(each[-1].scope in ("module", "class", "package") for each in found.values())


def timings() -> dict[str, float]:
    """Seconds that a parameter set of a test takes, by the test's name; short ones are not kept."""
    found: dict[str, float] = json.loads(TIMINGS.read_text(encoding="utf-8"))
    return found


_taken: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _taken[report.nodeid.partition("@")[0]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("PTIR_TIMINGS") != "1" or hasattr(session.config, "workerinput"):
        return
    by_function: dict[str, list[float]] = defaultdict(list)
    for nodeid, seconds in _taken.items():
        by_function[nodeid.partition("[")[0]].append(seconds)
    means = {name: sum(times) / len(times) for name, times in by_function.items()}
    kept = timings() | means
    lasting = {name: round(mean, 1) for name, mean in sorted(kept.items()) if mean >= KEPT}
    TIMINGS.write_text(json.dumps(lasting, indent=1) + "\n", encoding="utf-8")
