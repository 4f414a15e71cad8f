"""Encoders on a CPU: embeddings by ptir beside PyTorch and ONNX Runtime, in alternating rounds.

32 texts as token ids go in, 32 vectors come out: the network, the masked mean and the norm. The
texts have lengths as sentences do (``mixed``), or all the same one (``equal``), where padding costs
nobody anything. PyTorch pads them to the longest, as sentence-transformers does, and in a second
row runs the batches that ptir runs; ONNX Runtime runs what PyTorch exports on either. Results are
compared first. Ratios are taken within a round. Writes JSON; needs ``pip install torch
transformers``, and ``onnx onnxruntime onnxscript`` for ONNX Runtime.

    python benchmarks/encoders.py --backend c --threads 2 --rounds 7 --json out.json
    python benchmarks/encoders.py --model FOLDER    # a real MiniLM; random weights otherwise
    python benchmarks/encoders.py --bytes    # factors of bytes, too, and how their results agree

In bytes ptir rounds weights and activations (``--quant int8 --fast``), and so does ONNX Runtime's
dynamic quantization. With a real model the texts of ``measuring/texts.py`` are compared as well.

On a machine that others use, ``--threads 1 --clock cpu`` compares what the processors did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from measuring.calls import CLOCKS, OURS, Samples, alternating, report
from measuring.rounded import BYTES, agreements, dynamic, vectors_agree
from measuring.texts import SENTENCES

PRESET: Final = "minilm-l6"
TEXTS: Final = 32

Array = np.ndarray[Any, Any]
Call = Callable[[], Array]
Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Subject:
    """What the texts are like: their name, and how many tokens each has."""

    name: str
    lengths: tuple[int, ...]


def subjects() -> tuple[Subject, ...]:
    """Texts of one length, and lengths drawn as those of sentences: most short, a few long."""
    rng = np.random.default_rng(0)
    drawn = np.clip(rng.lognormal(3.0, 0.5, TEXTS), 6, 128).astype(int)
    return Subject("equal", (32,) * TEXTS), Subject("mixed", tuple(map(int, drawn)))


def folder_of(given: Path | None, place: str) -> str:
    """The model's folder: the one given, or one of the preset with random weights."""
    if given is not None:
        return str(given)
    import torch
    import transformers

    from ptir.models.table import preset

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**preset(PRESET)[1])
    transformers.AutoModel.from_config(config).save_pretrained(place)
    said = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    for number, kind in enumerate(("Pooling", "Normalize"), 1):
        said.append({"path": f"{number}_{kind}", "type": f"sentence_transformers.models.{kind}"})
        Path(place, f"{number}_{kind}").mkdir()
    Path(place, "modules.json").write_text(json.dumps(said))
    Path(place, "1_Pooling", "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return place


def ours(folder: str, rows: Rows, backend: str, **how: Any) -> Call:
    """A call of ptir: batches, uploads, networks, downloads."""
    import ptir
    from ptir.runtime import TextModel
    from ptir.text import EncodedText

    model = ptir.load_model(folder, backend=backend, **how)
    assert isinstance(model, TextModel)
    encoded = [
        EncodedText(tuple(row), (0,) * len(row), ((0, 0),) * len(row), (), len(row)) for row in rows
    ]
    return lambda: model.embed_encoded(encoded)


def padded(rows: Rows, length: int) -> tuple[Array, Array]:
    """Token ids and which are real, i64[B,length]."""
    ids = np.zeros((len(rows), length), np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = row, 1
    return ids, mask


def together(rows: Rows) -> list[tuple[list[int], Array, Array]]:
    """All rows padded to the longest: their numbers, ids, mask."""
    return [(list(range(len(rows))), *padded(rows, max(map(len, rows))))]


def in_batches(rows: Rows) -> list[tuple[list[int], Array, Array]]:
    """The rows in the batches that ptir chooses, without rows that only fill one up."""
    from ptir.runtime.batches import batches

    found = batches([len(row) for row in rows], 512)
    return [(list(one.texts), *padded([rows[n] for n in one.texts], one.length)) for one in found]


def network(folder: str) -> Any:
    """Transformers' model with the mean and the norm behind it."""
    import torch
    import transformers

    class Embedding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.AutoModel.from_pretrained(folder).eval()

        def forward(self, ids: Any, mask: Any) -> Any:
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            real = mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * real).sum(1) / real.sum(1)
            return torch.nn.functional.normalize(mean, dim=-1)

    return Embedding().eval()


def joined(count: int, parts: list[tuple[list[int], Any]]) -> Array:
    """The vectors of all batches in the rows' order."""
    found = np.empty((count, parts[0][1].shape[1]), np.float32)
    for numbers, vectors in parts:
        found[numbers] = vectors
    return found


def by_torch(model: Any, rows: Rows) -> Iterator[tuple[str, Call]]:
    """Calls of PyTorch: padded to the longest, in ptir's batches, and compiled."""
    import torch

    def call(net: Any, given: Any) -> Call:
        tensors = [(numbers, *map(torch.from_numpy, rest)) for numbers, *rest in given]

        def run() -> Array:
            with torch.inference_mode():
                return joined(len(rows), [(n, net(*rest).numpy()) for n, *rest in tensors])

        return run

    yield "torch", call(model, together(rows))
    yield "torch, batches", call(model, in_batches(rows))
    compiled = torch.compile(model, dynamic=True)
    yield "torch compiled", call(compiled, together(rows))
    yield "torch compiled, batches", call(compiled, in_batches(rows))


def by_onnxruntime(
    model: Any, rows: Rows, folder: str, threads: int, in_bytes: bool
) -> Iterator[tuple[str, Call]]:
    """Calls of ONNX Runtime on what PyTorch exports, and perhaps on that in bytes."""
    import onnxruntime
    import torch

    path = str(Path(folder, "model.onnx"))
    ids, mask = (torch.from_numpy(one) for one in together(rows)[0][1:])
    axes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    torch.onnx.export(
        model, (ids, mask), path, dynamo=True, dynamic_shapes=(axes, axes), verbose=False
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    files = {"onnxruntime": path}
    if in_bytes:
        files[f"{BYTES}onnxruntime"] = dynamic(path)
    for name, file in files.items():
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        for end, parts in (("", together(rows)), (", batches", in_batches(rows))):
            yield f"{name}{end}", partial(_joined_runs, session, len(rows), parts)


def _joined_runs(session: Any, count: int, parts: Any) -> Array:
    """The vectors that a session of ONNX Runtime gives for batches."""
    names = [one.name for one in session.get_inputs()]
    return joined(
        count,
        [(n, session.run(None, dict(zip(names, rest, strict=True)))[0]) for n, *rest in parts],
    )


def peers(given: argparse.Namespace, rows: Rows, place: str) -> Iterator[tuple[str, Call]]:
    """Every peer that was asked for, ptir first."""
    folder = folder_of(given.model, place)
    yield OURS, ours(folder, rows, given.backend)
    if given.bytes:
        yield f"{BYTES}ptir", ours(folder, rows, given.backend, quant="int8", fast=True)
    model = network(folder)
    if "onnxruntime" in given.peers:
        yield from by_onnxruntime(model, rows, place, given.threads, given.bytes)
    for name, call in by_torch(model, rows):
        if name.removesuffix(", batches") in given.peers:
            yield name, call


def sentences_agree(folder: Path, backend: str) -> dict[str, float]:
    """How ptir's vectors of sentences in bytes agree with exact ones."""
    import ptir

    exact, found = (
        ptir.load_model(folder, backend=backend, **how).embed(SENTENCES)
        for how in ({}, {"quant": "int8", "fast": True})
    )
    return vectors_agree(exact, found)


def measure(
    subject: Subject, given: argparse.Namespace
) -> tuple[Samples, dict[str, dict[str, float]]]:
    """Seconds of a call by peer, one for each round, and how rows in bytes agree with exact ones.

    Vectors are compared before.
    """
    rng = np.random.default_rng(1)
    rows = [rng.integers(1000, 30000, length).tolist() for length in subject.lengths]
    with tempfile.TemporaryDirectory() as place:
        calls = dict(peers(given, rows, place))
        wanted = calls[OURS]()
        for name, call in calls.items():
            off = float(1 - (call() * wanted).sum(axis=1).min())
            if off > 1e-5 and not name.startswith(BYTES):
                raise SystemExit(f"{subject}: {name} is off by {off:.1e}; nothing was measured")
        agreed = dict(agreements(calls, OURS, vectors_agree))
        return alternating(calls, given.rounds, given.calls, given.clock), agreed


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--model", type=Path, help="a folder; default: random weights")
    parser.add_argument("--threads", type=int, default=2, help="of every peer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3, help="calls of a measurement")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--peers", nargs="*", default=["torch", "torch compiled", "onnxruntime"])
    parser.add_argument("--bytes", action="store_true", help="also with factors of bytes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ["PTIR_C_THREADS"] = str(given.threads)
    import torch

    torch.set_num_threads(given.threads)
    rows: list[dict[str, Any]] = []
    for subject in subjects():
        samples, agreed = measure(subject, given)
        print("\n".join(report(f"{subject.name:6}", samples)), flush=True)
        if given.bytes:
            print(*report(f"{subject.name:6}", samples, f"{BYTES}ptir"), sep="\n")
            print(*(f"{subject.name:6}  {row}: {said}" for row, said in agreed.items()), sep="\n")
        row = {"texts": subject.name, "lengths": subject.lengths, "seconds": samples}
        rows.append({**row, "agreement": agreed})
    if given.bytes and given.model:
        said = sentences_agree(given.model, given.backend)
        print(f"sentences  {BYTES}ptir: {said}", flush=True)
        rows.append({"texts": "sentences", "agreement": {f"{BYTES}ptir": said}})
    if given.json:
        found = {"machine": platform.processor() or platform.machine(), "threads": given.threads}
        more = {"clock": given.clock, "backend": given.backend, "rows": rows}
        given.json.write_text(json.dumps({**found, **more}, indent=1) + "\n")


if __name__ == "__main__":
    main()
