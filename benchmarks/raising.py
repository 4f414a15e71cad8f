"""What raising costs, and what it gives: programs of bare ops beside those that name functionals.

Layers of bare ops are raised at growing sizes, up to 100,000 instructions; the time for each should
stay the same. Then a decode step of a model is compiled three times: as it names its functionals,
written as bare ops and raised, and as bare ops that stay as they are (``PTIR_AS_WRITTEN``). They
run in turns, so that what else the machine does falls on all of them.

    python benchmarks/raising.py --backend c --model demo --repetitions 9
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.jit import record
from ptir.capture.plan import Plan, plan_for
from ptir.ir.graph import expand, rebuild
from ptir.ir.program import Block, Program
from ptir.rewrite.patterns import Patterns
from ptir.rewrite.raising import raised
from ptir.types import spec

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)


def bare(block: Block) -> Block:
    """``block`` with lowerings for composites, all the way down."""
    while any(i.op == "composite" for i in block.instructions):
        block = rebuild(block, lambda i, given: expand(i, given) if i.op == "composite" else None)
    return block


def layers(count: int) -> Block:
    """Layers of a norm, a gated MLP and a residual, as bare ops: some 50 instructions each."""

    def body(x: Any, norm: Any, wide: Any, back: Any) -> Any:
        for _ in range(count):
            normed = F.rms_norm(x, norm, epsilon=1e-6)
            hidden = F.swiglu(F.linear(normed, wide), F.linear(normed, wide))
            x = x + F.linear(hidden, back)
        return x

    specs = ("f32", 1, 4, 16), ("f32", 16), ("f32", 16, 32), ("f32", 32, 16)
    return bare(ptir.capture(body, *(spec(*one) for one in specs)).main)


def scale() -> Iterator[dict[str, Any]]:
    """Seconds of raising by the size of a program."""
    each = len(layers(2).instructions) - len(layers(1).instructions)
    raised(layers(2), {})
    for size in SIZES:
        block = layers(size // each)
        before = sum(p.tries for p in Patterns.values())
        began = time.process_time()  # of this process alone: others do not count
        after = raised(block, {})
        seconds = time.process_time() - began
        tries = sum(p.tries for p in Patterns.values()) - before
        count = len(block.instructions)
        yield {
            "instructions": count,
            "left": len(after.instructions),
            "seconds": seconds,
            "microseconds_each": seconds / count * 1e6,
            "tries_each": tries / count,
        }


@contextmanager
def as_written() -> Iterator[None]:
    """Nothing is raised inside."""
    os.environ["PTIR_AS_WRITTEN"] = "1"
    try:
        yield
    finally:
        del os.environ["PTIR_AS_WRITTEN"]


def step_of(model: Any, context: int) -> tuple[Program, dict[str, Any]]:
    """A decode step of a model and what its parameter ports stand for."""
    from ptir.nn.state import by_layer, tensor_names

    states = model.states()
    types = [t for carried in model.state_types(1, context) for t in carried]

    def step(tokens: Any, start: Any, count: Any, *flat: Any) -> Any:
        return model.module(tokens, by_layer(states, flat), start, count)

    row = spec("i32", 1)
    names = ["tokens", "start", "count", *tensor_names(states)]
    captured = record(step, (spec("i32", 1, 1), row, row, *types), names)[0]
    return captured.program, captured.parameters


def runner(plan: Plan, program: Program, parameters: dict[str, Any], target: Target) -> Any:
    """A function that runs a step once and waits."""
    backend, device = target.backend, target.device
    typed = zip(program.ports, program.inputs, strict=True)
    arrays = [
        np.ones(t.shape, t.dtype.numpy) if i < 3 else np.zeros(t.shape, t.dtype.numpy)
        for i, (port, t) in enumerate(typed)
        if port.kind == "input"
    ]
    handles = [backend.upload(array, device) for array in arrays]
    bound = plan.bind(parameters)

    def run() -> float:
        backend.synchronize(device)
        began = time.perf_counter()
        plan.run(handles, bound)
        backend.synchronize(device)
        return time.perf_counter() - began

    return run


def steps(spelled: str, backend: str, repetitions: int, context: int) -> dict[str, Any]:
    """Seconds of a step by how it is written, in turns, and what compiling took."""
    target = ptir.backend(backend)
    model = ptir.load_model(spelled, backend=backend)
    program, parameters = step_of(model, context)
    written = replace(program, main=bare(program.main))
    found: dict[str, Any] = {"model": spelled, "device": str(target)}
    runs: dict[str, Any] = {}
    for name, one in (("named", program), ("raised", written), ("as written", written)):
        began = time.perf_counter()
        if name == "as written":
            with as_written():
                plan = plan_for(one, target)
        else:
            plan = plan_for(one, target)
        found[name] = {
            "instructions": len(one.main.instructions),
            "optimized": len(plan.optimized.main.instructions),
            "compile_seconds": time.perf_counter() - began,
        }
        runs[name] = runner(plan, one, parameters, target)
        runs[name]()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            samples[name].append(min(run() for _ in range(5)))
    for name, seconds in samples.items():
        found[name] |= {"median_seconds": statistics.median(seconds), "samples": seconds}
    base = found["named"]["median_seconds"]
    for name in runs:
        found[name]["share_of_named"] = found[name]["median_seconds"] / base
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", default="c")
    parser.add_argument("--model", action="append", help="a model as ptir run takes it; repeatable")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write everything here")
    given = parser.parse_args()
    told: dict[str, Any] = {"scale": [], "steps": []}
    for row in scale():
        told["scale"].append(row)
        print(
            f"{row['instructions']:>8} instructions -> {row['left']:>6} in {row['seconds']:.2f} s:"
            f" {row['microseconds_each']:.0f} us and {row['tries_each']:.2f} tries each"
        )
    for name in given.model or []:
        found = steps(name, given.backend, given.repetitions, given.context)
        told["steps"].append(found)
        for how in ("named", "raised", "as written"):
            one = found[how]
            print(
                f"{name} {how}: {one['median_seconds'] * 1e3:.3f} ms a step"
                f" ({one['share_of_named']:.1%} of named), {one['optimized']} instructions,"
                f" compiled in {one['compile_seconds']:.2f} s"
            )
    if given.json:
        given.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
