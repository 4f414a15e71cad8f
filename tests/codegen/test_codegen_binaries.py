"""The cache of built kernels: what is read, what is written, what leaves, and what is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paper import PaperDevice

from ptir import events
from ptir.backend.disk_cache import DiskCache
from ptir.codegen.artifact import binaries
from ptir.codegen.weights import panels

SOURCE = "kernel text"


class Press(PaperDevice):
    """A paper device whose binaries are the source behind a stamp."""

    def __init__(self, stamp: bytes = b"1:") -> None:
        self.stamp = stamp
        self.builds = 0

    def build(self, source: str) -> Any:
        self.builds += 1
        return source

    def binary(self, built: Any) -> bytes | None:
        return self.stamp + built.encode()

    def load(self, source: str, binary: bytes) -> Any | None:
        return binary.removeprefix(self.stamp).decode() if binary.startswith(self.stamp) else None


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    return tmp_path / "kernels"


@pytest.fixture
def heard() -> Iterator[list[events.KernelsBuilt]]:
    found: list[events.KernelsBuilt] = []
    remove = events.subscribe(
        lambda event: found.append(event) if isinstance(event, events.KernelsBuilt) else None
    )
    yield found
    remove()


def entry(kernels: Path) -> Path:
    (path,) = kernels.iterdir()
    return path


def test_the_next_process_restores_what_one_built(
    kernels: Path, heard: list[events.KernelsBuilt]
) -> None:
    first, second = Press(), Press()
    assert binaries.built(first, SOURCE) == binaries.built(second, SOURCE) == SOURCE
    assert (first.builds, second.builds) == (1, 0)
    assert [event.restored for event in heard] == [False, True]
    assert heard[0].key == heard[1].key == entry(kernels).stem


def test_a_process_reads_an_entry_once(kernels: Path, heard: list[events.KernelsBuilt]) -> None:
    device = Press()
    binaries.built(device, SOURCE)
    entry(kernels).unlink()
    assert binaries.built(device, SOURCE) == SOURCE
    assert len(heard) == 1
    binaries.forget()
    binaries.built(device, SOURCE)
    assert (device.builds, len(heard)) == (2, 2)


def test_a_process_forgets_what_it_used_least_recently(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "MEMORY_CACHE_SIZE", 2)
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")  # nothing comes from disk
    device = Press()
    binaries.built(device, "old")
    binaries.built(device, "middle")
    binaries.built(device, "old")  # used again
    binaries.built(device, "new")
    builds = device.builds
    assert binaries.built(device, "old") == "old"
    assert device.builds == builds
    binaries.built(device, "middle")
    assert device.builds == builds + 1


def test_every_part_of_the_key_counts(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other, dialect = Press(), Press(), Press()
    other.traits = replace(plain.traits, identity="paper, next driver")
    dialect.dialect = type("Other", (type(plain.dialect),), {"name": "other"})(doubles=True)
    keys = {binaries.binary_key(device, SOURCE) for device in (plain, other, dialect)}
    keys.add(binaries.binary_key(plain, SOURCE + " "))
    monkeypatch.setattr(panels, "VERSION", panels.VERSION + 1)
    keys.add(binaries.binary_key(plain, SOURCE))
    assert len(keys) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[: len(binaries.BINARIES.magic) + 3],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content.replace(b"kernels 1", b"kernels 0", 1),
    ],
    ids=["empty", "cut", "cut short", "one bit", "another format"],
)
def test_a_damaged_entry_is_told_once_and_built_again(
    kernels: Path, heard: list[events.KernelsBuilt], damage: Any
) -> None:
    binaries.built(Press(), SOURCE)
    path = entry(kernels)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    device = Press()
    with pytest.warns(UserWarning, match=r"is damaged; its kernels are built again") as told:
        assert binaries.built(device, SOURCE) == SOURCE
    assert len(told) == 1 and str(path) in str(told[0].message)
    assert device.builds == 1
    assert path.read_bytes() == whole
    assert [event.restored for event in heard] == [False, False]


def test_an_entry_that_the_driver_refuses_is_built_again(kernels: Path) -> None:
    binaries.built(Press(), SOURCE)
    device = Press(stamp=b"2:")
    with pytest.warns(UserWarning, match="refused by the driver; its kernels are built again"):
        assert binaries.built(device, SOURCE) == SOURCE
    assert device.builds == 1
    again = Press(stamp=b"2:")
    binaries.built(again, SOURCE)
    assert again.builds == 0


def test_the_switch_leaves_the_disk_alone(
    kernels: Path, heard: list[events.KernelsBuilt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
    device = Press()
    for processes in (1, 2):
        binaries.forget()
        for _ in range(2):
            binaries.built(device, SOURCE)
        assert device.builds == len(heard) == processes
    assert not kernels.exists()


def test_a_device_without_binaries_writes_nothing(kernels: Path) -> None:
    binaries.built(PaperDevice(), SOURCE)
    assert not kernels.exists()


def test_a_folder_that_cannot_be_is_a_warning_and_no_more(tmp_path: Path, kernels: Path) -> None:
    kernels.write_text("a file, not a folder")
    with pytest.warns(UserWarning, match=r"cannot be written .*; set PTIR_CACHE_DIR"):
        assert binaries.built(Press(), SOURCE) == SOURCE


def test_the_least_recently_used_leave_first(kernels: Path) -> None:
    now = time.time()
    for number, name in enumerate(("old", "older", "new")):
        binaries.BINARIES.write(name, b"x" * 1000)
        os.utime(kernels / f"{name}.kernels", (now - 100, now - 100 * (3 - number)))
    assert binaries.BINARIES.read("old") == b"x" * 1000  # used: now the newest
    size = (kernels / "new.kernels").stat().st_size
    binaries.BINARIES.write("last", b"y" * 1000, limit=3 * size)
    assert {path.stem for path in kernels.iterdir()} == {"old", "new", "last"}


def test_one_entry_may_be_larger_than_the_limit(kernels: Path) -> None:
    binaries.BINARIES.write("small", b"x")
    binaries.BINARIES.write("large", b"y" * 1000, limit=10)
    assert [path.stem for path in kernels.iterdir()] == ["large"]


def test_files_that_were_never_finished_leave_after_a_while(kernels: Path) -> None:
    kernels.mkdir()
    old, young = kernels / "a.part", kernels / "b.part"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    binaries.BINARIES.write("entry", b"x")
    assert {path.name for path in kernels.iterdir()} == {"b.part", "entry.kernels"}


WRITER = """
import sys
from ptir.codegen.artifact import binaries
for n in range(60):
    binaries.BINARIES.write(f"k{n % 5}", bytes([n % 5]) * 40000, limit=130000)
    found = binaries.BINARIES.read(f"k{(n + 1) % 5}")
    assert found is None or found == bytes([(n + 1) % 5]) * 40000
"""


def test_processes_share_the_folder(kernels: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in running:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert sum(path.stat().st_size for path in kernels.iterdir()) <= 130000
    assert all(path.suffix == ".kernels" for path in kernels.iterdir())


def test_a_folder_is_looked_through_now_and_then(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = list[int]()
    monkeypatch.setattr(DiskCache, "_evict", lambda self, limit: looked.append(limit))
    for n in range(33):
        binaries.BINARIES.write(f"k{n}", b"x" * 10, limit=64 * 100)
    assert len(looked) == 1 + 32 // 11, "at first, then whenever more than 100 bytes were added"
