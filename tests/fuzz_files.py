"""Models with something wrong in their files: each is refused by name, or it runs.

``python tests/fuzz_files.py --count 100000 --jobs 2``: right models (``hostile/models.py``) are
changed in one to three places and opened as ``ptir inspect`` and ``ptir run`` open them, in
processes that are watched; of kind ``config`` every value of every family's configuration is
another value once. The last line counts how they ended. ``--first N --count 1 --keep DIR`` makes a
model of an earlier run again and leaves it in a folder.
"""

from __future__ import annotations

import argparse
import pickle
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hostile import config_mutations, folder_mutations, gguf_mutations, models
from hostile.judging import Fault, bounded, judged
from hostile.watched import Work, watched


class Kind(NamedTuple):
    """A kind of models: how the right ones are made, and how a changed one is written."""

    made: Callable[[Path], Mapping[str, Any]]
    written: Callable[[Any, random.Random, Path], Path]


def gguf_models(folder: Path) -> Mapping[str, models.Files]:
    """The right ones by name."""
    return {name: one.made(folder / name) for name, one in models.RECIPES.items()}


def gguf_written(right: models.Files, rng: random.Random, folder: Path) -> Path:
    """The file to open."""
    for name, file in gguf_mutations.mutated_files(right, rng).items():
        (folder / name).write_bytes(file)
    return folder / next(iter(right))


KINDS = {
    "gguf": Kind(gguf_models, gguf_written),
    "folder": Kind(folder_mutations.folders, folder_mutations.written),
    "config": Kind(config_mutations.folders, config_mutations.written),
}


class Case(NamedTuple):
    """A changed model: which one, and how it ended."""

    name: str
    ended: str


def case(
    kind: str, rights: Mapping[str, Any], seed: int, number: int, folder: Path
) -> tuple[str, Path]:
    """Write model ``number`` of ``seed`` into a folder: its right form's name, and its path."""
    name = list(rights)[number % len(rights)]
    rng = random.Random(f"{kind}-{seed}-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return name, KINDS[kind].written(rights[name], rng, folder)


def ending(kind: str, rights: Mapping[str, Any], seed: int, number: int, folder: Path) -> str:
    """How one ended; a fault begins with its name."""
    shutil.rmtree(folder, ignore_errors=True)
    name, path = case(kind, rights, seed, number, folder)
    try:
        return judged(path)
    except Fault as fault:
        return f"fault: {name}: {fault}"


def worker(kind: str, stored: Path, seed: int, folder: Path) -> Work:
    """What a process does with a number; the right models are warmed up first."""
    rights = pickle.loads(stored.read_bytes())
    own = Path(tempfile.mkdtemp(dir=folder))
    bounded()

    def work(number: int) -> str:
        return ending(kind, rights, seed, number, own / "model")

    return work


def run(kind: str, count: int, seed: int, first: int, jobs: int, timeout: float) -> Counter[str]:
    """How many ended how; every fault is printed."""
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored = folder / "rights"
        stored.write_bytes(pickle.dumps(KINDS[kind].made(folder / "right")))
        found = watched(
            worker,
            (kind, stored, seed, folder),
            range(first, first + count),
            jobs=jobs,
            timeout=timeout,
        )
        for number, ended in found:
            if ended.startswith(("fault", "crash", "hang")):
                again = f"--kind {kind} --seed {seed} --first {number} --count 1"
                print(f"{ended}\n  again: python tests/fuzz_files.py {again}", flush=True)
                ended = "fault"
            ends[ended] += 1
            if ends.total() % 1000 == 0:
                print(f"{kind}: {ends.total()} of {count}", file=sys.stderr, flush=True)
    return ends


def headline(kind: str, ends: Counter[str]) -> str:
    """How many ended how."""
    said = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()) if end != "fault")
    faults = f"{ends['fault']} faults" if ends["fault"] else "no fault"
    return f"{ends.total()} mutated {kind} models: {said}; {faults}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    parser.add_argument("--count", type=int, default=100_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds without an answer")
    parser.add_argument("--keep", type=Path, help="write the first one here, and open it")
    given = parser.parse_args()
    kinds = given.kind or list(KINDS)
    if given.keep:
        with tempfile.TemporaryDirectory() as name:
            rights = KINDS[kinds[0]].made(Path(name) / "right")
        print(*case(kinds[0], rights, given.seed, given.first, given.keep))
        return 0
    ends = {
        kind: run(kind, given.count, given.seed, given.first, given.jobs, given.timeout)
        for kind in kinds
    }
    for kind, found in ends.items():
        print(headline(kind, found))
    return int(any(found["fault"] for found in ends.values()))


if __name__ == "__main__":
    sys.exit(main())
