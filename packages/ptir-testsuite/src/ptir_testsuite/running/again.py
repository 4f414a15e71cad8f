"""The command that runs a row again."""

from __future__ import annotations

from collections.abc import Iterable

from ptir.ops.profiles import PROFILES
from ptir_testsuite.running.outcomes import Row


def again(
    row: Row,
    backend: str,
    claims: Iterable[str] | None = None,
    relaxations: Iterable[str] = (),
    imports: Iterable[str] = (),
) -> str:
    """What to type; ``claims`` where they are not the backend's own.

    A random program is drawn within the claims, and from all ops that there are. One that fails
    only beside others is run with them.
    """
    options = [f"--relax {name}" for name in relaxations]
    options += [f"--import {name}" for name in imports]
    if claims is not None:
        known = frozenset(claims)
        text = "all" if known == frozenset(PROFILES) else ",".join(sorted(known))
        options.insert(0, f"--claims {text}")
    verb = f"replay {row.case}"
    if beside := row.facts.get("beside"):
        _, seed, first = row.case.split("-")
        verb = f"programs --seed {seed} --first {first} --count {1 + len(beside)}"
    return " ".join((f"ptir-conformance {verb} --backend {backend}", *options))
