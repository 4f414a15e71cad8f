"""Generated text under the sanitizers of the compiler: no undefined behaviour, no stray access.

Kernels are built with a sanitizer in a process of its own, whose C library's memory functions are
the sanitizer's, and the corpus's slice of every op and a model run on them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptir.backend.contract import Target
from ptir_backend_c import compiler

pytestmark = pytest.mark.turns(2)

HERE = Path(__file__).parent
SCRIPT = f"""
import sys
sys.path[:0] = [{str(HERE.parent)!r}, {str(HERE.parent / "opencl")!r}]
import numpy as np
import ptir
from ptir.backend import registry
from corpus_slices import ByOp, outcomes, spread
from ptir_testsuite.running.outcomes import Outcome

target = registry.get("c")
chosen = [case for cases in ByOp().in_turn(6) for case in spread(cases, 1)]
wrong = [row for row in outcomes(chosen, target) if row.outcome is not Outcome.PASS]
assert not wrong, wrong[0].message
model, how = "random:gpt2-tiny", {{"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}}
found, there = (
    ptir.load_model(model, backend=one).generate([5, 3, 9], **how) for one in (target, "ref")
)
assert found.token_ids == there.token_ids
assert chosen
print(len(chosen), "programs and a model are clean")
"""
CONVOLUTIONS = f"""
import sys
sys.path[:0] = [{str(HERE.parent)!r}, {str(HERE.parent / "opencl")!r}]
from dataclasses import replace
from unittest import mock
import numpy as np
import ptir
from opencl_runs import close, normal, with_parameters
from test_opencl_convolutions import convolved
from ptir import functional as F
from ptir.backend import registry
from ptir.codegen.families.convolution import produced, serial
from ptir.codegen.families.convolution.match import choose_tiling
from ptir.codegen.weights.panels import LANES

def cut(*given):  # three panels in pieces of two
    return replace(choose_tiling(*given), tiles=2, tile_pieces=2, pitch=2 * LANES)

target = registry.get("c")
weight = normal(3, 3, 1, 48, seed=2)
for window, channels, sides in ((1, 8, 0), (3, 3, 1)):
    x, wide = normal(1, 5, 7, channels), normal(window, window, channels, 48, seed=1)
    with (
        mock.patch.object(produced, "LARGE", 0),
        mock.patch.object(produced, "NARROW", 1),
        mock.patch.object(serial, "choose_tiling", cut),
    ):
        found = with_parameters(
            target,
            lambda x, wide, w: F.conv2d(
                F.conv2d(x, wide, padding=sides), w, padding=1, groups=48
            ),
            x, wide, weight,
        )
    made = convolved(x, wide, low=sides, high=sides)
    close(found, convolved(made, weight, low=1, high=1, groups=48), 1e-4)
for shape, outputs in (((2, 5, 7, 20), 40), ((1, 14, 14, 33), 17)):
    x, weight = normal(*shape), normal(3, 3, shape[3], outputs, seed=1)
    with ptir.overrides(conv2d="force=winograd"):
        found = with_parameters(target, lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    close(found, convolved(x, weight, low=1, high=1), 5e-4)
print("convolutions are clean")
"""
FAULTY = """
from ptir.backend import registry
target = registry.get("c")
device = target.backend.opened(target.device).device
built = device.build('''TEXT''')
kernel = device.kernel(built, "f", 1)
memory = device.allocate(64)
device.bind(kernel, 0, memory)
device.launch(kernel, 1)
"""
STRAY = "void f(void *const *buffers, const int item) { ((int *)buffers[0])[32 + item] = 1; }"
UNDEFINED = (
    "void f(void *const *buffers, const int item) {"
    " int *x = buffers[0]; x[0] = 2147483647 - item; x[0] = x[0] + 1; }"
)


def sanitized(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script whose kernels are built with the sanitizers; skips where there are none."""
    found = compiler.find()
    places = [_library(found.command, name) for name in ("libasan.so", "libubsan.so")]
    environment = {
        **os.environ,
        "CC": f"{found.command[0]} -fsanitize=address,undefined -fno-sanitize-recover=all",
        "LD_PRELOAD": " ".join(places),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PTIR_CACHE_DIR": str(tmp_path),
        "PTIR_C_THREADS": "2",
    }
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


def _library(command: tuple[str, ...], name: str) -> str:
    asked = [*command, f"-print-file-name={name}"]
    place = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(place):
        pytest.skip(f"this compiler has no {name}")
    return place


@pytest.mark.slow
def test_generated_kernels_are_clean(c: Target, tmp_path: Path) -> None:
    done = sanitized(SCRIPT, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "programs and a model are clean" in done.stdout


def test_convolutions_in_pieces_that_are_not_whole_are_clean(c: Target, tmp_path: Path) -> None:
    done = sanitized(CONVOLUTIONS, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "convolutions are clean" in done.stdout


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    ("text", "words"),
    [(STRAY, "heap-buffer-overflow"), (UNDEFINED, "signed integer overflow")],
)
def test_a_kernel_that_is_not_clean_is_caught(
    c: Target, tmp_path: Path, text: str, words: str
) -> None:
    done = sanitized(FAULTY.replace("TEXT", text), tmp_path)
    assert done.returncode != 0
    assert words in done.stderr, done.stderr[-3000:]
