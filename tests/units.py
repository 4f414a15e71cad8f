"""What one worker runs together, and in which order: a pytest plugin that ``conftest.py`` loads.

The tests of a file are a unit, so that what they share is made once; a test that takes long and
shares nothing is one by itself. The longest units go first, by the times in ``timings.json``, so
that no worker waits at the end for one test. ``PTIR_TIMINGS=1`` writes that file anew.

Workers tell which units there are through a file: ``--dist loadgroup`` tells by names, and with
pytest 9.2 xdist 3.8 then takes every test for a unit, without a word (pytest-xdist issue 1386).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

TIMINGS: Final = Path(__file__).with_name("timings.json")
ALONE: Final = 2.0
"""Seconds from which a test is handed to a worker by itself, not with the others of its file."""
KEPT: Final = 0.2
"""Seconds of a test's mean from which ``timings.json`` holds it."""
FILE: Final = "units"
"""Under which name a worker is told where to write its units."""


# --- which units there are ---


@pytest.hookimpl(trylast=True)  # of the tests that are left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    units = ordered(items)
    items[:] = [item for unit in units.values() for item in unit]
    told: str | None = getattr(config, "workerinput", {}).get(FILE)
    if told is not None:
        _tell(Path(told), {item.nodeid: unit for unit, mine in units.items() for item in mine})


def ordered(items: Sequence[pytest.Item]) -> Mapping[str, Sequence[pytest.Item]]:
    """The items of each unit, those that take longest first."""
    known = timings()
    units: dict[str, list[pytest.Item]] = defaultdict(list)
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        own = known.get(function(item), 0.0)
        unit = item.nodeid if own >= ALONE and not _shares(item) else item.nodeid.split("::")[0]
        units[unit].append(item)
        seconds[unit] += own
    return {unit: units[unit] for unit in sorted(units, key=lambda unit: -seconds[unit])}


def _shares(item: Any) -> bool:
    """Whether the item needs something that is made once for its module."""
    found = item._fixtureinfo.name2fixturedefs
    return any(each[-1].scope in ("module", "class", "package") for each in found.values())


def _tell(path: Path, units: Mapping[str, str]) -> None:
    """Write the unit of every test; all workers write the same, none half of it."""
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(json.dumps(units), encoding="utf-8")
    own.replace(path)


# --- handing them to workers ---


class Units(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types here
    """Hands a worker the next unit, in the order in which the tests were collected."""

    @cached_property
    def units(self) -> dict[str, str]:
        """The unit of every test; read when all workers have collected."""
        found: dict[str, str] = json.loads(_told(self.config).read_text(encoding="utf-8"))
        return found

    def _split_scope(self, nodeid: str) -> str:
        return self.units[nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units | None:
    return Units(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[FILE] = str(_told(node.config))


_FOLDER: Final = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def _told(config: pytest.Config) -> Path:
    """The file of the units; its folder goes when the session does."""
    if _FOLDER not in config.stash:
        config.stash[_FOLDER] = tempfile.TemporaryDirectory(prefix="ptir-units-")
        config.add_cleanup(config.stash[_FOLDER].cleanup)
    return Path(config.stash[_FOLDER].name, "units.json")


# --- how long they take ---


def function(item: pytest.Item) -> str:
    """The name that all parameter sets of a test share."""
    return item.nodeid.partition("[")[0]


def timings() -> dict[str, float]:
    """Seconds that a parameter set of a test takes, by the test's name; short ones are not kept."""
    found: dict[str, float] = json.loads(TIMINGS.read_text(encoding="utf-8"))
    return found


_taken: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _taken[report.nodeid] += report.duration


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
