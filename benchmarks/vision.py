"""Models of images on a CPU: ptir beside PyTorch and ONNX Runtime, in alternating rounds.

Each network has random weights, the same for all peers; results are compared first. PyTorch runs
eager, with channels last, and compiled (``torch.compile``); ONNX Runtime runs what PyTorch exports.
Every round measures each peer once, after a pause, so that what else the machine does meets all of
them. Ratios are taken within a round. Writes JSON; needs ``pip install torch transformers``, and
``onnx onnxruntime onnxscript`` for ONNX Runtime.

    python benchmarks/vision.py --backend c --threads 2 --rounds 7 --json out.json
    python benchmarks/vision.py --bytes    # factors of bytes, too, and how their results agree

In bytes ptir rounds weights and activations (``--quant int8 --fast``), ONNX Runtime by ranges that
it has seen for the same images. How results agree is found with 64 images, the measured ones first.

``--tune`` runs ``ptir tune`` on each network first and measures ptir before and after.

On a machine that others use, ``--threads 1 --clock cpu`` compares what the processors did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from measuring.calls import CLOCKS, OURS, Samples, alternating, report
from measuring.rounded import BYTES, agreements, scores_agree, static

SIZE: Final = 224
COMPARED: Final = 64
"""Images whose scores in bytes are compared with exact ones."""

Call = Callable[[], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Subject:
    """A network by the name of its random weights, and how many images a call has."""

    preset: str
    batch: int


SUBJECTS: Final = (
    Subject("resnet34", 1),
    Subject("resnet34", 8),
    Subject("mobilenet-v2", 1),
    Subject("mobilenet-v2", 8),
    Subject("vit-base-16", 1),
)


def saved(preset: str, folder: str) -> Any:
    """Transformers' model of a preset with random weights, which ptir opens from ``folder``."""
    import torch
    import transformers

    from ptir.models.table import preset as found

    config = transformers.AutoConfig.for_model(**found(preset)[1])
    torch.manual_seed(0)
    model = transformers.AutoModelForImageClassification.from_config(config).eval()
    with torch.no_grad():
        for name, value in model.named_buffers():
            if name.endswith("running_var"):
                value.uniform_(0.5, 2.0)
            elif name.endswith("running_mean"):
                value.normal_(0.0, 0.1)
    model.save_pretrained(folder)
    return model


def images(count: int) -> np.ndarray[Any, Any]:
    """Prepared images of normal numbers; the first ones do not depend on how many there are."""
    return np.random.default_rng(0).standard_normal((count, SIZE, SIZE, 3), np.float32)


def ours(folder: str, pixels: np.ndarray[Any, Any], backend: str, **how: Any) -> Call:
    """A call of ptir, with the upload of the images and the download of the scores."""
    import ptir

    model = ptir.load_model(folder, backend=backend, **how)
    return lambda: model.forward(pixels)


def tuned(folder: str, pixels: np.ndarray[Any, Any], backend: str) -> Call:
    """``ours`` once every functional of the network has the implementation that is fastest."""
    import ptir
    from ptir.runtime.tune import tune

    report = tune(ptir.load_model(folder, backend=backend), batch=len(pixels))
    print(f"tuned: {sum(one.decided for one in report.records)} kinds of calls")
    return ours(folder, pixels, backend)


def by_torch(
    model: Any, pixels: np.ndarray[Any, Any], names: list[str]
) -> Iterator[tuple[str, Call]]:
    """Calls of PyTorch: as it is, channels last, compiled."""
    import torch

    plain = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    last = plain.contiguous(memory_format=torch.channels_last)
    first = plain.contiguous()

    def call(network: Any, given: Any) -> Call:
        def run() -> np.ndarray[Any, Any]:
            with torch.inference_mode():
                found: np.ndarray[Any, Any] = network(given).logits.numpy()
            return found

        return run

    if "torch" in names:
        yield "torch", call(model, first)
    in_place = model.to(memory_format=torch.channels_last)
    if "torch channels last" in names:
        yield "torch channels last", call(in_place, last)
    if "torch compiled" in names:
        yield "torch compiled", call(torch.compile(in_place), last)


def by_onnxruntime(
    model: Any, pixels: np.ndarray[Any, Any], folder: str, threads: int, in_bytes: bool
) -> Iterator[tuple[str, Call]]:
    """Calls of ONNX Runtime on what PyTorch exports, and perhaps on that in bytes."""
    import onnxruntime
    import torch

    path = str(Path(folder, "model.onnx"))
    given = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    torch.onnx.export(model, (torch.from_numpy(given),), path, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads

    def call(file: str) -> Call:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda: session.run(None, {name: given})[0]

    yield "onnxruntime", call(path)
    if in_bytes:
        name = onnxruntime.InferenceSession(path, options).get_inputs()[0].name
        yield f"{BYTES}onnxruntime", call(static(path, name, given))


def peers(subject: Subject, given: argparse.Namespace, folder: str) -> Iterator[tuple[str, Call]]:
    """Every peer that was asked for, ptir first."""
    pixels = images(subject.batch)
    model = saved(subject.preset, folder)
    before = ours(folder, pixels, given.backend)
    if given.tune:
        yield OURS, tuned(folder, pixels, given.backend)
        yield "ptir as it comes", before
    else:
        yield OURS, before
    if given.bytes:
        yield f"{BYTES}ptir", ours(folder, pixels, given.backend, quant="int8", fast=True)
    if "onnxruntime" in given.peers:
        yield from by_onnxruntime(model, pixels, folder, given.threads, given.bytes)
    yield from by_torch(model, pixels, given.peers)


def measure(
    subject: Subject, given: argparse.Namespace
) -> tuple[Samples, dict[str, dict[str, float]]]:
    """Seconds of a call by peer, one for each round, and how rows in bytes agree with exact ones.

    Scores are compared before.
    """
    with tempfile.TemporaryDirectory() as folder:
        calls = dict(peers(subject, given, folder))
        wanted = calls[OURS]()
        for name, call in calls.items():
            off = np.abs(call() - wanted).max() / np.abs(wanted).max()
            if off > 1e-3 and not name.startswith(BYTES):
                raise SystemExit(f"{subject}: {name} is off by {off:.1e}; nothing was measured")
        agreed = dict(agreements(calls, OURS, scores_agree))
        if given.bytes and subject.batch == 1:
            many = images(COMPARED)
            exact = ours(folder, many, given.backend)()
            found = ours(folder, many, given.backend, quant="int8", fast=True)()
            agreed[f"{BYTES}ptir"] = scores_agree(exact, found)
        return alternating(calls, given.rounds, given.calls, given.clock), agreed


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--threads", type=int, default=2, help="of every peer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3, help="calls of a measurement")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--only", action="append", default=[], metavar="PRESET[:BATCH]")
    parser.add_argument(
        "--peers",
        nargs="*",
        default=["torch", "torch channels last", "torch compiled", "onnxruntime"],
    )
    parser.add_argument("--tune", action="store_true", help="ptir tune first")
    parser.add_argument("--bytes", action="store_true", help="also with factors of bytes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ["PTIR_C_THREADS"] = str(given.threads)
    import torch

    torch.set_num_threads(given.threads)
    rows: list[dict[str, Any]] = []
    for subject in SUBJECTS:
        named = {subject.preset, f"{subject.preset}:{subject.batch}"}
        if given.only and not named & {*given.only}:
            continue
        samples, agreed = measure(subject, given)
        row = {"preset": subject.preset, "batch": subject.batch, "samples": samples}
        rows.append({**row, "agreement": agreed})
        name = f"{subject.preset:14} {subject.batch:2}"
        print(*report(name, samples), sep="\n", flush=True)
        if given.bytes:
            print(*report(name, samples, f"{BYTES}ptir"), sep="\n")
            print(*(f"{name}  {row}: {said}" for row, said in agreed.items()), sep="\n", flush=True)
    if given.json:
        load = os.getloadavg()
        found = {"rows": rows, "machine": platform.platform(), "load": load, **vars(given)}
        given.json.write_text(json.dumps(found, indent=1, default=str))


if __name__ == "__main__":
    main()
