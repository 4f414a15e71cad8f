"""Chains: kernels that follow one another in one launch give what they give one by one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.backend.contract import Options, Target
from ptir.capture.run import run_program
from ptir.codegen.compile import compile_block
from ptir.codegen.context import Context
from ptir.codegen.planning.persistent import PersistentKernel
from ptir.ir.program import Program
from ptir.types import spec
from ptir_backend_opencl import OpenCLBackend

SHAPE = (96, 80)
LAYERS = 6


def alone(monkeypatch: pytest.MonkeyPatch) -> Target:
    """The first device with every kernel launched by itself."""
    backend = OpenCLBackend()
    device = backend.devices()[0]
    with monkeypatch.context() as patch:
        patch.setenv("PTIR_OPENCL_WITHOUT", "chains")
        assert backend.opened(device).device.traits.max_persistent_buffers == 0
    return Target(backend, device)


def layers(x: Any, w: Any) -> Any:
    """Reductions and products that each need all of what came before."""
    for _ in range(LAYERS):
        y = (x - x.mean(axis=1, keepdims=True)) @ w
        x = x + y / (1.0 + abs(y).max(axis=0, keepdims=True))
    return x


def many(*xs: Any) -> Any:
    """More memories than one kernel can take."""
    total = xs[0].sum(axis=1)
    for x in xs[1:]:
        total = (total.reshape(-1, 1) + x).max(axis=1)
    return total


def arrays(count: int, shape: tuple[int, ...] = SHAPE) -> list[np.ndarray]:
    found = np.random.default_rng(5).standard_normal((count, *shape), np.float32)
    return list(found)


def program() -> tuple[Program, dict[str, np.ndarray]]:
    made = ptir.capture(layers, spec("f32", *SHAPE), spec("f32", SHAPE[1], SHAPE[1]))
    (x,), (w,) = arrays(1), arrays(1, (SHAPE[1], SHAPE[1]))
    return made, {"x": x, "w": w}


def chains(target: Target, made: Program) -> tuple[PersistentKernel, ...]:
    device = target.backend.opened(target.device).device  # type: ignore[attr-defined]
    return compile_block(made.main, Context.of(device), Options()).persistent


def test_a_chain_gives_to_the_bit_what_its_kernels_give_one_by_one(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, inputs = program()
    (wanted,) = run_program(made, inputs, alone(monkeypatch))
    for _ in range(50):  # counters that are not set back fail the second run
        (found,) = run_program(made, inputs, opencl)
        np.testing.assert_array_equal(found, wanted)


def test_kernels_without_a_copy_between_them_are_one_launch(opencl: Target) -> None:
    made, _ = program()
    (chain,) = chains(opencl, made)
    assert len(chain.kernels) >= 2 * LAYERS


def test_more_memories_than_a_kernel_takes_are_several_chains(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = opencl.backend.opened(opencl.device).device.traits.max_persistent_buffers  # type: ignore[attr-defined]
    count = 2 * limit
    made = ptir.capture(many, *[spec("f32", 4, 3)] * count)
    found = chains(opencl, made)
    assert 2 <= len(found) <= 4
    assert all(len(chain.buffers) < limit for chain in found)  # one is left for the counters
    inputs = {port.name: a for port, a in zip(made.ports, arrays(count, (4, 3)), strict=True)}
    (got,), (wanted,) = (run_program(made, inputs, t) for t in (opencl, alone(monkeypatch)))
    np.testing.assert_array_equal(got, wanted)


ONE_THREAD = """
import sys
from dataclasses import replace
import numpy as np
from ptir.backend.contract import Target
from ptir.capture.run import run_program
from test_opencl_chains import OpenCLBackend, program
backend = OpenCLBackend()
device = backend.devices()[0]
opened = backend.opened(device).device
assert opened.traits.compute_units == 1, opened.traits
opened.traits = replace(opened.traits, compute_units=3)
made, inputs = program()
(found,) = run_program(made, inputs, Target(backend, device))
np.save(sys.argv[1], found)
"""


def test_workers_that_are_never_started_are_not_waited_for(opencl: Target, tmp_path: Path) -> None:
    """Three workers on a driver of one thread: the first does everything, the others nothing."""
    if "pocl" not in str(opencl.backend.capabilities(opencl.device)["opencl"]).lower():
        pytest.skip("only PoCL can be told how many threads to have")
    made, inputs = program()
    (wanted,) = run_program(made, inputs, opencl)
    one = {"POCL_CPU_MAX_CU_COUNT": "1", "POCL_MAX_PTHREAD_COUNT": "1"}
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    result = tmp_path / "found.npy"
    command = [sys.executable, "-c", ONE_THREAD, str(result)]
    subprocess.run(command, env=os.environ | one | {"PYTHONPATH": paths}, check=True, timeout=120)
    np.testing.assert_array_equal(np.load(result), wanted)


def test_chains_of_several_threads_do_not_disturb_each_other(opencl: Target) -> None:
    made, inputs = program()
    (wanted,) = run_program(made, inputs, opencl)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            (found,) = run_program(made, inputs, opencl)
            if not np.array_equal(found, wanted):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
