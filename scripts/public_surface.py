"""Nobody changes what others rely on without telling them: the surface and the changelog, together.

tests/data/public_surface.txt holds the lines of `surface.lines()` and a digest of the top section
of CHANGELOG.md, as both were when the surface last changed. Whoever changes the surface says so in
that section, naming in backticks each thing that came, changed or (once released) went, and runs

    python scripts/public_surface.py --write

which refuses where the section is still the one of the last change, or does not name them. Entries
for something else cost nothing: the digest is compared only where the surface differs. Two branches
that both changed it are merged by taking either file and writing it again.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from surface import lines

ROOT: Final = Path(__file__).resolve().parent.parent
SNAPSHOT: Final = ROOT / "tests/data/public_surface.txt"
CHANGELOG: Final = ROOT / "CHANGELOG.md"
COMMAND: Final = "python scripts/public_surface.py --write"
HEAD: Final = f"""# What other people may rely on. Written by `{COMMAND}`.
# + marks what no release has had yet.
"""
SHOWN: Final = 40
"""Lines of a difference in a message."""


@dataclass(frozen=True)
class Section:
    """The top section of the changelog."""

    version: str
    text: str

    @property
    def digest(self) -> str:
        """Of the words alone: lines broken elsewhere tell nobody anything."""
        words = " ".join(self.text.split())
        return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()

    @property
    def names(self) -> frozenset[str]:
        """Every identifier and option that stands in backticks."""
        spans = re.findall(r"`([^`]+)`", self.text)
        return frozenset(word for span in spans for word in re.findall(r"[\w-]+", span))


def top_section(changelog: str) -> Section:
    """The section that the next release will publish."""
    first = re.search(r"^## (\S+).*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if first is None:
        raise ValueError("CHANGELOG.md has no section: its versions are headings of two #")
    return Section(first[1], first[0])


@dataclass(frozen=True)
class Snapshot:
    """The committed file: which section told of it, and each line with whether it is unreleased."""

    version: str
    digest: str
    lines: dict[str, bool]

    @classmethod
    def read(cls, text: str) -> Snapshot:
        """From the file."""
        _, version, digest = re.findall(r"^# (told by) (\S+) (\S+)$", text, re.MULTILINE)[0]
        rows = [line for line in text.splitlines() if line and not line.startswith("#")]
        return cls(version, digest, {row[2:]: row.startswith("+") for row in rows})

    def __str__(self) -> str:
        rows = [f"{'+' if new else ' '} {line}\n" for line, new in sorted(self.lines.items())]
        return f"{HEAD}# told by {self.version} {self.digest}\n\n{''.join(rows)}"


@dataclass(frozen=True)
class Change:
    """How the surface is another than the snapshot's."""

    gone: tuple[str, ...]
    come: tuple[str, ...]
    untold: str
    """What the top section still has to say; nothing where the snapshot may be written."""

    def __str__(self) -> str:
        rows = sorted([f"- {line}" for line in self.gone] + [f"+ {line}" for line in self.come])
        rows.sort(key=lambda row: subject_of(row[2:]))  # what a thing was beside what it is
        more = [f"... and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
        todo = self.untold or f"CHANGELOG.md tells of it; run `{COMMAND}`."
        return "\n".join(["the public surface changed:", *rows[:SHOWN], *more, todo])


def change(before: Snapshot, now: Sequence[str], section: Section) -> Change | None:
    """What became of the surface since the snapshot, and whether the changelog tells of it."""
    gone, come = sorted(set(before.lines) - set(now)), sorted(set(now) - set(before.lines))
    if not gone and not come:
        return None
    return Change(tuple(gone), tuple(come), _untold(before, gone, come, section))


def _untold(before: Snapshot, gone: list[str], come: list[str], section: Section) -> str:
    if section.digest == before.digest:
        return (
            f"CHANGELOG.md: the section {section.version} is still the one of the last change; "
            f"say there what this one means for users, then run `{COMMAND}`."
        )
    next_release = section.version != before.version
    released = [line for line in gone if next_release or not before.lines[line]]
    kept = {subject_of(line) for line in gone} & {subject_of(line) for line in come}
    told = [*_heads(come, kept), *_heads(released, kept)]
    missing = {name_of(line) for line in told} - section.names
    if not missing:
        return ""
    listed = ", ".join(f"`{name}`" for name in sorted(missing)[:SHOWN])
    return (
        f"CHANGELOG.md: the section {section.version} does not name {listed}; say there, in "
        f"backticks, what became of each, then run `{COMMAND}`."
    )


def _heads(changed: list[str], kept: set[str]) -> list[str]:
    """Without the members of classes and the options of commands that came or went as a whole."""
    wholes = {subject_of(x) for x in changed if ": class(" in x or x == subject_of(x)} - kept
    owned = tuple(f"{whole}{mark}" for whole in wholes for mark in " .")
    return [line for line in changed if not subject_of(line).startswith(owned)]


def subject_of(line: str) -> str:
    """The thing that a line is about, without what is said of it."""
    if not line.startswith("$ "):
        return re.split(r"[(:]| = ", line, maxsplit=1)[0]
    words = line.split()
    ends = (n for n, word in enumerate(words) if _is_parameter(word) and n > 1)
    return " ".join(words[: next(ends, len(words)) + 1])


def name_of(line: str) -> str:
    """What an entry of the changelog calls it: the last name, or the class of a ``__method__``."""
    names = re.split(r"[ ./]", subject_of(line))
    return names[-2] if names[-1].startswith("__") else names[-1]


def _is_parameter(word: str) -> bool:
    return (word.startswith("-") and word != "-p") or (word.isupper() and word != "COMMAND")


def written(before: Snapshot, now: Sequence[str], section: Section) -> Snapshot:
    """The next snapshot; what an earlier section told of has been released since."""
    same = before.version == section.version
    marked = {line: same and before.lines[line] if line in before.lines else True for line in now}
    return Snapshot(section.version, section.digest, marked)


def found() -> tuple[Snapshot, list[str], Section]:
    """The committed snapshot, the surface of the working tree, the top section."""
    section = top_section(CHANGELOG.read_text(encoding="utf-8"))
    return Snapshot.read(SNAPSHOT.read_text(encoding="utf-8")), lines(), section


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, or write; the exit code is 1 where there is something to do."""
    parser = argparse.ArgumentParser(description="Compare or record the public surface.")
    parser.add_argument("--write", action="store_true", help="record the surface as it is now")
    given = parser.parse_args(argv)
    before, now, section = found()
    changed = change(before, now, section)
    if changed is None:
        print(f"the public surface is the recorded one: {len(now)} lines")
        return 0
    if not given.write or changed.untold:
        print(f"{'refused, nothing is written: ' if given.write else ''}{changed}")
        return 1
    SNAPSHOT.write_text(str(written(before, now, section)), encoding="utf-8")
    print(f"{changed}\nwritten: {len(now)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
