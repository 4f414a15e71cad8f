"""A miss in the disk cache names the parts of the key that no stored one has."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptir import events
from ptir.backend import cache_key
from ptir.backend.cache_key import CacheKey, known_keys, note_stored, tell_lookup, why_missed
from ptir.backend.disk_cache import DiskCache, digest_key

CACHE = DiskCache("things", 1, limit=1 << 20)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))


def key(device: str, source: str) -> CacheKey:
    return CacheKey.of({"device": device, "source": source})


def test_a_key_is_the_digest_of_its_parts() -> None:
    assert key("a", "b") == digest_key("a", "b")


def test_the_nearest_key_says_what_differs() -> None:
    assert why_missed(CACHE, key("a", "b")) == "nothing was stored yet"
    for device, source in (("a", "b"), ("c", "d")):
        note_stored(CACHE, key(device, source))
    near = key("a", "b")[:8]
    found = why_missed(CACHE, key("a", "x"))
    assert found == f"other source than in {near}, the nearest of 2"
    assert why_missed(CACHE, key("x", "y")).startswith("other device, source than in")
    assert why_missed(CACHE, key("c", "d")) == "it was stored, and has left since"


def test_lines_that_are_no_keys_are_left_out() -> None:
    note_stored(CACHE, key("a", "b"))
    with known_keys(CACHE).open("ab") as file:
        file.write(b'\xff{"key": 1}\n[]\n{"key": "k", "parts": 5}\nnull\n{"key": "tor')
    assert "the nearest of 1" in why_missed(CACHE, key("a", "x"))


def test_the_list_of_keys_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_key, "LIMIT", 1000)
    for number in range(50):
        note_stored(CACHE, key("a", str(number)))
    assert known_keys(CACHE).stat().st_size < 1200
    assert why_missed(CACHE, key("a", "49")) == "it was stored, and has left since"


def test_only_who_listens_hears_of_lookups() -> None:
    tell_lookup(CACHE, key("a", "b"), hit=False)
    heard: list[events.Event] = []
    remove = events.subscribe(heard.append)
    tell_lookup(CACHE, key("a", "b"), hit=False)
    tell_lookup(CACHE, key("a", "b"), hit=True)
    remove()
    assert heard == [
        events.CacheLookup("things", key("a", "b"), False, "nothing was stored yet"),
        events.CacheLookup("things", key("a", "b"), True, ""),
    ]
