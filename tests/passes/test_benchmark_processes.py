"""The benchmark policy from end to end: what one process timed, the next one uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json
import numpy as np
import ptir, ptir_backend_ref
from ptir import events, functional as F
from ptir.backend import Target
from ptir.passes import timing

timed, chosen = [], []
run_times = timing.run_times
timing.run_times = lambda *given: (timed.extend(given[0]), run_times(*given))[1]
events.subscribe(lambda e: chosen.append(e.implementation)
                 if isinstance(e, events.ImplementationChosen) else None)
backend = ptir_backend_ref.backend
x = ptir.tensor(np.ones((3, 5), "f4"), backend=Target(backend, backend.devices()[0]))
with ptir.overrides(softmax="benchmark"):
    result = F.softmax(x).numpy()
np.testing.assert_allclose(result, 0.2, rtol=1e-6)
print(json.dumps({"timed": len(timed), "chosen": chosen}))
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def once(expect: str = "") -> dict[str, Any]:
        environment = {**os.environ, "PTIR_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if "implementations.json" in line]
        assert (len(said) == 1 and expect in said[0]) if expect else not done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return once


def test_a_second_process_uses_what_the_first_one_timed(run: Any, tmp_path: Path) -> None:
    first = run()
    assert first["timed"] >= 3 and len(first["chosen"]) == 1
    assert run() == {"timed": 0, "chosen": first["chosen"]}
    path = tmp_path / "implementations.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    (choice,) = kept["choices"]
    others = sorted(choice["seconds"].keys() - {choice["implementation"]})
    for other in others[:1]:
        choice |= {"implementation": other, "decided": True}
        path.write_text(json.dumps(kept), encoding="utf-8")
        assert run() == {"timed": 0, "chosen": [other]}
    path.write_text('{"format": 2, "choices": [', encoding="utf-8")
    again = run("not a list of timed choices")
    assert again["timed"] == first["timed"]
    assert run() == {"timed": 0, "chosen": again["chosen"]}
