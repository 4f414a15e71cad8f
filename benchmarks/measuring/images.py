"""Convolutions beside PyTorch's, each number of threads in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import bars
from measuring.bars import Row

PROGRAM = Path(__file__).parent.parent / "convolution.py"


def convolution_rows(given: argparse.Namespace, threads: int) -> list[Row]:
    """Each distinct convolution of ResNet34, and all of them as often as the network has them."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "found.json")
        command = [sys.executable, str(PROGRAM), "--backend", given.backend, "--json", str(result)]
        command += ["--threads", str(threads), "--rounds", str(given.rounds)]
        environment = {**os.environ, "PTIR_C_THREADS": str(threads)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"convolution.py ended with code {done.returncode}: {done.stderr}")
        found = json.loads(result.read_text())["rows"]
    subject = f"convolutions, {threads} thread{'s' if threads > 1 else ''}"
    rows = list[Row]()
    totals = {name: [0.0] * given.rounds for name in found[0]["samples"]}
    for row in found:
        for name, samples in row["samples"].items():
            totals[name] = [
                t + row["count"] * s for t, s in zip(totals[name], samples, strict=True)
            ]
        pairs = zip(row["samples"]["torch"], row["samples"]["ptir"], strict=True)
        figure = f"{' '.join(row['shape'].split())}, x PyTorch"
        rows.append(Row(subject, figure, [theirs / own for theirs, own in pairs], "x"))
    rows += [Row(subject, f"{n}: all", [1e3 * t for t in s], "ms") for n, s in totals.items()]
    own = totals.pop("ptir")
    for name, theirs in totals.items():
        ratios = [t / o for t, o in zip(theirs, own, strict=True)]
        rows.append(Row(subject, f"all, x {name}", ratios, "x", bars.CONVOLUTIONS))
    return rows
