"""The convolutions of ResNet34 (one 224x224 image) on a CPU: ptir beside PyTorch.

Each distinct shape is measured in alternating rounds (ptir, torch, torch with channels last, ...),
with a pause before each: PyTorch's threads keep a core busy for a while after a call. Totals count
every shape as often as the network has it. Writes JSON; needs ``pip install torch``.

    python benchmarks/convolution.py --backend opencl --threads 2 --rounds 5 --json out.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PAUSE = 0.03
CALLS = 5


@dataclass(frozen=True)
class Shape:
    """A convolution over a square image, and how often ResNet34 has it."""

    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    count: int

    @property
    def flops(self) -> int:
        """Operations of one call."""
        places = -(-self.size // self.stride)
        return 2 * places**2 * self.inputs * self.outputs * self.kernel**2

    def __str__(self) -> str:
        kind = f"{self.kernel}x{self.kernel}/{self.stride}"
        return f"{self.size:3}px {self.inputs:3} -> {self.outputs:3} {kind}"


RESNET34 = (
    Shape(224, 3, 64, 7, 2, 1),
    Shape(56, 64, 64, 3, 1, 6),
    Shape(56, 64, 128, 3, 2, 1),
    Shape(56, 64, 128, 1, 2, 1),
    Shape(28, 128, 128, 3, 1, 7),
    Shape(28, 128, 256, 3, 2, 1),
    Shape(28, 128, 256, 1, 2, 1),
    Shape(14, 256, 256, 3, 1, 11),
    Shape(14, 256, 512, 3, 2, 1),
    Shape(14, 256, 512, 1, 2, 1),
    Shape(7, 512, 512, 3, 1, 5),
)


def ours(shape: Shape, x: Any, weight: Any, backend: str) -> Callable[[], Any]:
    """A call of ptir, with the weight as a stored parameter."""
    from ptir import functional as F
    from ptir.backend import registry
    from ptir.capture.creation import parameter
    from ptir.capture.jit import record
    from ptir.capture.plan import plan_for
    from ptir.params.source import ArraySource
    from ptir.params.store import ParamStore
    from ptir.types import spec

    target = registry.get(backend)
    store = ParamStore(ArraySource({"weight": weight}), target)

    def body(x: Any) -> Any:
        given = {"strides": shape.stride, "padding": shape.kernel // 2, "layout": "oihw"}
        return F.conv2d(x, parameter(store, "weight"), **given)

    captured, _ = record(body, (spec("f32", *x.shape),), ("x",))
    plan = plan_for(captured.program, target)
    handle = target.backend.upload(x, target.device)
    weights = plan.bind(captured.parameters)

    def call() -> Any:
        (result,) = plan.run([handle], weights)
        target.backend.synchronize(target.device)
        return result

    call.download = lambda: target.backend.download(call(), target.device)  # type: ignore[attr-defined]
    return call


def theirs(shape: Shape, x: Any, weight: Any, last: bool) -> Callable[[], Any]:
    """A call of PyTorch, channels first or last in memory."""
    import torch

    image = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()
    filters = torch.from_numpy(weight)
    if last:
        image, filters = (t.contiguous(memory_format=torch.channels_last) for t in (image, filters))

    def call() -> Any:
        with torch.inference_mode():
            padding = shape.kernel // 2
            return torch.nn.functional.conv2d(image, filters, None, shape.stride, padding)

    return call


def measure(shape: Shape, backend: str, rounds: int) -> dict[str, list[float]]:
    """Seconds per call of every peer in alternating rounds, results compared first."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, shape.size, shape.size, shape.inputs), np.float32)
    weight = rng.standard_normal((shape.outputs, shape.inputs, *(shape.kernel,) * 2), np.float32)
    peers = {
        "ptir": ours(shape, x, weight, backend),
        "torch": theirs(shape, x, weight, False),
        "torch channels last": theirs(shape, x, weight, True),
    }
    wanted = peers["torch"]().numpy().transpose(0, 2, 3, 1)
    found = peers["ptir"].download()  # type: ignore[attr-defined]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-3)
    samples: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, call in peers.items():
            time.sleep(PAUSE)
            call()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            samples[name].append((time.perf_counter() - began) / CALLS)
    return samples


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's threads")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    totals: dict[str, dict[str, float]] = {}
    for shape in RESNET34:
        samples = measure(shape, options.backend, options.rounds)
        rows.append({"shape": str(shape), "count": shape.count, "samples": samples})
        line = f"{shape!s} x{shape.count:2}"
        for name, found in samples.items():
            middle, least = statistics.median(found), min(found)
            total = totals.setdefault(name, {"median": 0.0, "least": 0.0})
            total["median"] += middle * shape.count
            total["least"] += least * shape.count
            spread = f"[{least * 1e6:.0f}, {max(found) * 1e6:.0f}]"
            line += f"  {name} {middle * 1e6:6.0f} us {spread} {shape.flops / middle / 1e9:5.0f} GF"
        print(line, flush=True)
    for name, total in totals.items():
        ratios = {key: total[key] / totals["ptir"][key] for key in total}
        print(
            f"{name:20} total {total['median'] * 1e3:6.1f} ms, of the fastest rounds"
            f" {total['least'] * 1e3:6.1f} ms; {ratios['median']:.2f} and {ratios['least']:.2f}"
            " times ptir's"
        )
    if options.json:
        result = {"rows": rows, "totals": totals, "machine": platform.platform()}
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
