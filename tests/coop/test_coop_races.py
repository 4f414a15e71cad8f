"""Coop kernels under oclgrind: no data races, nothing read or written outside, barriers together.

Each planted fault is one that such kernels may have, and is found in the same way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from raced import KINDS

from devices import tool
from ptir.switches import SCHEDULE

pytestmark = pytest.mark.turns(2)

SCRIPT = Path(__file__).with_name("raced.py")
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"


def checked(folder: Path, kinds: list[str], planted: tuple[str, str] | None = None) -> str:
    """What oclgrind says of the kinds; results are checked where nothing is planted."""
    oclgrind = tool("oclgrind")
    log = folder / "log"
    given = json.dumps([kinds, planted])
    environment = {key: value for key, value in os.environ.items() if key != SCHEDULE}
    environment["PTIR_REBUILD_KERNELS"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [oclgrind, "--data-races", "--log", str(log), sys.executable, str(SCRIPT), given],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    off = dict(line.split() for line in ran.stdout.splitlines())
    assert list(off) == kinds, ran.stdout
    if planted is None:
        assert all(float(value) < 1e-4 for value in off.values()), off
    return log.read_text(encoding="utf-8")


def test_no_kernel_races_or_leaves_its_memory(tmp_path: Path) -> None:
    assert checked(tmp_path, list(KINDS)) == ""


@pytest.mark.slice(3)
@pytest.mark.parametrize(
    ("kind", "planted", "says"),
    [
        ("softmax", (BARRIER, ";"), "data race"),
        ("blocked", (BARRIER, ";"), "data race"),
        ("prompt", (BARRIER, ";"), "data race"),
        ("split", (" == ", " <= "), "data race"),  # parts behind the entry write it too
        ("cumulative", (BARRIER, f"if (member < 7) {BARRIER}"), "divergence"),
        ("mapped", ("if (run < 37)", "if (1)"), "Invalid write"),
        ("streamed", (" < 40)", " < 48)"), "Invalid write"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_planted_fault_is_found(
    tmp_path: Path, kind: str, planted: tuple[str, str], says: str
) -> None:
    assert says in checked(tmp_path, [kind], planted)
