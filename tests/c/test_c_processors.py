"""How many threads there are: what is asked for, affinity, shared cores and the quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ptir.errors import UsageError
from ptir_backend_c import processors


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores of two processors each, all allowed, no limits."""
    monkeypatch.delenv("PTIR_C_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)
    for number in range(8):
        folder = tmp_path / f"cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    (tmp_path / "groups/box").mkdir(parents=True)
    (tmp_path / "own").write_text("0::/box\n")
    monkeypatch.setattr(processors, "SYSTEM", tmp_path / "cpu")
    monkeypatch.setattr(processors, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(processors, "OWN_GROUP", tmp_path / "own")
    return tmp_path


def test_a_core_counts_once(machine: Path) -> None:
    assert processors.threads() == 4
    assert processors.places(4) == [0, 1, 2, 3]


def test_only_allowed_processors_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 6}, raising=False)
    assert processors.threads() == 2
    assert processors.places(2) == [1, 6]


@pytest.mark.parametrize(
    ("limit", "count"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 4)]
)
@pytest.mark.parametrize("where", ["groups/box", "groups"])
def test_the_quota_of_the_container_counts(
    machine: Path, limit: str, count: int, where: str
) -> None:
    (machine / where / "cpu.max").write_text(limit)
    assert processors.threads() == count


def test_the_quota_of_an_older_system_counts(machine: Path) -> None:
    (machine / "own").write_text("4:cpu,cpuacct:/box\n")
    folder = machine / "groups/cpu/box"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("300000")
    (folder / "cpu.cfs_period_us").write_text("100000")
    assert processors.threads() == 3
    (folder / "cpu.cfs_quota_us").write_text("-1")
    assert processors.threads() == 4


@pytest.mark.parametrize("count", [3, 6])
def test_threads_that_do_not_match_the_cores_are_not_bound(
    machine: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setenv("PTIR_C_THREADS", str(count))
    assert processors.threads() == count
    assert processors.places(count) is None


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1025"])
def test_a_number_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PTIR_C_THREADS", text)
    with pytest.raises(UsageError, match=rf"PTIR_C_THREADS={text}: give a number .* 1 to 1024"):
        processors.threads()
