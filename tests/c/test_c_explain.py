"""``ptir explain`` on C: how its threads share a step, whether they do it or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ptir.backend.contract import Target

CODE = "import sys; from ptir.cli.main import main; sys.exit(main(sys.argv[1:]))"
STEP = ("explain", "demo", "--backend", "c", "--position", "8", "-r", "1")


def run(*options: str, shared: str = "", threads: int = 2) -> str:
    """What the command prints in a process of its own."""
    environment = {**os.environ, "PTIR_C_SHARED": shared, "PTIR_C_THREADS": str(threads)}
    command = [sys.executable, "-c", CODE, *STEP, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    ("asked", "said"), [("", "(off; PTIR_C_SHARED="), ("always", "(shared by 2: ")]
)
def test_the_phases_of_its_threads_are_shown(c: Target, asked: str, said: str) -> None:
    out = run(shared=asked)
    below = out[out.index("by 2 workers ") :].splitlines()
    assert said in below[0]
    assert sum(line.split()[:1] == ["phase"] and "50.0 | 50.0%" in line for line in below) >= 4
    assert any(line.startswith("barriers  13, 2 a layer") for line in below)


def test_its_json_has_them(c: Target) -> None:
    found = json.loads(run("--json"))
    assert found["sharing"].startswith("off")
    assert (found["shared"]["workers"], found["shared"]["barriers_per_layer"]) == (2, 2)


def test_so_many_threads_that_sharing_takes_long_to_compute_are_shown_on_request(c: Target) -> None:
    out = run(threads=9)
    assert "their phases: ptir explain demo --workers 9" in out
    assert "phase 1" not in out
