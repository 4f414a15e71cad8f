"""GGUF files beside llama.cpp: one file of each type, read by both, decoding and a prompt of 512.

llama.cpp's own quantizer writes the files, from random weights in f16; those of rare types
(``RANDOM``) hold random blocks. The models: GPT-2 124M, a Llama of 0.5B parameters (28 layers,
1,024 wide, 16 heads of 128, 8 of them of keys, 3,072 inner), and the families of
``measuring/shapes.py``, whose logits are first compared on files of few layers. Peers run in
processes of their own and alternate; ratios are taken within a round, and the table shows medians
and spreads. Needs ``pip install llama-cpp-python gguf``. With ``--peer ik_llama.cpp`` that fork is
in its place (``measuring/ik_llama.py`` says how it is built).

    python benchmarks/gguf_speed.py --models llama-0.5b --json benchmarks/results/gguf-c.json
    python benchmarks/gguf_speed.py --models qwen3.5-0.8b gemma4-e2b gpt-oss-4-layers
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from measuring.bars import Row
from measuring.blocks import random_file
from measuring.llama import quantized_file
from measuring.models import DECODED, FAST, PROMPT, Seconds, add_round, tokens
from measuring.probing import PIECES
from measuring.reported import Reported
from measuring.shapes import FAMILIES, write_shapes
from measuring.workers import Worker
from speed import has_llama

LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}

LLAMA_CPP: Final = "llama.cpp"
PEERS: Final = (LLAMA_CPP, "ik_llama.cpp")
BARS_OF_FORK: Final = (1.1, None)
"""The bars of decoding and of an exact prompt, over ik_llama.cpp."""

TYPES: Final[dict[str, tuple[float, float]]] = {
    "Q8_0": (1.7, 1.9),
    "Q4_0": (1.7, 1.1),
    "Q4_1": (1.0, 1.1),
    "Q5_0": (1.5, 1.1),
    "Q5_1": (1.0, 1.1),
    "Q2_K": (1.0, 1.1),
    "Q3_K": (1.0, 1.1),
    "Q4_K_M": (1.5, 1.1),
    "Q5_K_M": (1.4, 1.1),
    "Q6_K": (1.4, 1.1),
    "IQ4_NL": (1.0, 1.1),
    "IQ4_XS": (1.4, 1.1),
    "MXFP4": (1.4, 1.1),
    "IQ3_S": (1.0, 1.1),
    "IQ3_XXS": (1.0, 1.1),
    "IQ2_S": (1.0, 1.1),
    "IQ2_XS": (1.0, 1.1),
    "IQ2_XXS": (1.0, 1.1),
    "IQ1_M": (1.0, 1.1),
    "IQ1_S": (1.0, 1.1),
    "TQ2_0": (1.0, 1.1),
    "TQ1_0": (1.0, 1.1),
}
"""What llama.cpp calls a file, and the bars of decoding and of a prompt, over llama.cpp."""
RANDOM: Final = frozenset(
    (
        *("Q4_1", "Q5_1", "Q2_K", "Q3_K", "IQ4_NL", "MXFP4", "IQ3_S", "IQ3_XXS"),
        *("IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0"),
    )
)
"""Types whose files are random blocks, all matrices of the one type."""
FAST_PROMPT: Final = {"Q8_0": 4.0, "Q4_0": 2.4, "Q4_K_M": 2.4}
"""The bars of a prompt with activations rounded to bytes (``--fast``), which llama.cpp's are."""
ALIKE: Final = 0.1
"""The most that logits may differ, over the largest: llama.cpp rounds activations to 8 bits."""
PLAIN_ALIKE: Final = 0.01
"""The same of a file in f16: it rounds them to that, and keys and values."""
COMPARED: Final = 24
"""Tokens of the prompt after which logits are compared."""


@dataclass(frozen=True)
class Measured:
    """A model: its tokens, what writes it in f16, and the types that it is measured in.

    ``bars`` are those of decoding and of a prompt, where those of a type do not hold. ``short``
    writes the same with few layers, where logits are compared.
    """

    vocabulary: int
    write: Callable[[Path], Path]
    types: tuple[str, ...] = tuple(TYPES)
    bars: tuple[float, float] | None = None
    short: Callable[[Path], Path] | None = None

    def bars_of(self, kind: str) -> tuple[float, float]:
        """What decoding and a prompt have to reach."""
        return self.bars or TYPES[kind]


def _gpt2(path: Path) -> Path:
    from ptir.runtime.gguf_file import save_gguf
    from ptir.runtime.specs import resolve
    from ptir.types import F16

    return save_gguf(resolve("random:gpt2"), path, dtype=F16)


def _llama(path: Path) -> Path:
    from ptir.checkpoint import Checkpoint
    from ptir.models import definition
    from ptir.params.source import RandomSource
    from ptir.runtime.gguf_file import save_gguf
    from ptir.runtime.specs import parameter_types
    from ptir.types import F16

    source = RandomSource(
        parameter_types(definition("llama"), LLAMA),
        seed=0,
        scale_fn=lambda name, type_: 0.02,
        offset_fn=lambda name, type_: float("norm" in name),
    )
    checkpoint = Checkpoint(path, LLAMA, {}, {}, source, None, ())
    return save_gguf(checkpoint, path, dtype=F16)


def _family(name: str) -> Measured:
    """A family of 2026, in the types that people run it in."""
    whole, short = FAMILIES[name]
    types = ("MXFP4_MOE",) if whole.keys.get("expert_count") else ("Q8_0", "Q4_K_M")
    write, write_short = (partial(write_shapes, shapes) for shapes in (whole, short))
    return Measured(whole.vocabulary, write, types, (1.3, 1.1), write_short)


MODELS: Final[Mapping[str, Measured]] = {
    "gpt2": Measured(50257, _gpt2),
    "llama-0.5b": Measured(LLAMA["vocab_size"], _llama),
    **{name: _family(name) for name in FAMILIES},
}
KINDS: Final = list(dict.fromkeys(kind for model in MODELS.values() for kind in model.types))
"""All types, of which each model has its own."""


def file_of(name: str, write: Callable[[Path], Path], kind: str, folder: Path) -> Path:
    """A model as a file of a type, for which it is written in f16; what is there is kept."""
    plain, path = folder / f"{name}-F16.gguf", folder / f"{name}-{kind}.gguf"
    if not path.exists() and not plain.exists():
        write(plain)
    if kind == "F16":
        return path
    return (random_file if kind in RANDOM else quantized_file)(plain, path, kind)


def rows_of(model: str, kind: str, folder: Path, given: argparse.Namespace) -> list[Row]:
    """Decoding and a prompt of one file."""
    measured, subject = MODELS[model], f"{model} {kind}"
    alike = compared(subject, model, kind, folder, given) if measured.short else []
    vocabulary = measured.vocabulary
    path = file_of(model, measured.write, kind, folder)
    prompt = [token % vocabulary for token in tokens(PROMPT)]
    piece = [token % vocabulary for token in tokens(DECODED // PIECES)]
    given_as = {"backend": given.backend, "dtype": "f32", "quant": None, "model": str(path)}
    with ExitStack() as stack:
        peers = {
            "ptir": stack.enter_context(Worker("ptir", given.threads, **given_as)),
            **(
                {FAST: stack.enter_context(Worker("ptir", given.threads, **given_as, fast=True))}
                if given.fast
                else {}
            ),
            given.peer: stack.enter_context(
                Worker(given.peer, path=str(path), threads=given.threads)
            ),
        }
        seconds: Seconds = {peer: defaultdict(list) for peer in peers}
        for number in range(given.rounds + 1):  # the first one warms up
            add_round(seconds if number else {}, peers, piece, prompt, given.threads)
        held = peers["ptir"].call("facts")["weight_bytes"]
        stored = peers[given.peer].call("facts")["weight_bytes"]
    bars = measured.bars_of(kind) if given.peer == LLAMA_CPP else BARS_OF_FORK
    return [*alike, *_table(subject, given.peer, bars, kind, seconds, held, stored)]


def compared(
    subject: str, model: str, kind: str, folder: Path, given: argparse.Namespace
) -> list[Row]:
    """How far logits are from llama.cpp's; raises ``RuntimeError`` where it is another model."""
    short = MODELS[model].short
    assert short is not None, "only models that have a short form are compared"
    rows = []
    for one, most in (("F16", PLAIN_ALIKE), (kind, ALIKE)):
        apart = _apart(file_of(f"{model}-short", short, one, folder), given)
        figure = f"logits, largest difference in {one}"
        if not apart <= most:
            raise RuntimeError(f"{subject}: {figure}: {apart:.3f}; at most {most} may be")
        rows.append(Row(subject, figure, [apart], "", most, at_most=True))
    return rows


def _apart(path: Path, given: argparse.Namespace) -> float:
    """The largest difference of logits, over the largest of them."""
    prompt = [token % 1024 for token in tokens(COMPARED)]
    given_as = {"backend": given.backend, "dtype": "f32", "quant": None, "model": str(path)}
    with (
        Worker("ptir", given.threads, **given_as) as ours,
        Worker(given.peer, path=str(path), threads=given.threads) as llama,
    ):
        own, theirs = (np.array(peer.call("logits", prompt)) for peer in (ours, llama))
    return float(np.abs(own - theirs).max() / np.abs(theirs).max())


def _table(
    subject: str,
    beside: str,
    wanted: tuple[float | None, float | None],
    kind: str,
    seconds: Seconds,
    held: int,
    stored: int,
) -> list[Row]:
    rows: list[Row] = []
    for peer, found in seconds.items():
        rows.append(
            Row(subject, f"{peer}: decode", [DECODED / s for s in found["decode"]], "tok/s")
        )
        rows.append(
            Row(
                subject,
                f"{peer}: prefill of {PROMPT}",
                [PROMPT / s for s in found["prefill"]],
                "tok/s",
            )
        )
    for what, bar in zip(("decode", "prefill"), wanted, strict=True):
        found = _ratios(seconds, "ptir", beside, what)
        rows.append(Row(subject, f"{what}, x {beside}", found, "x", bar))
    if FAST in seconds:
        bar = FAST_PROMPT.get(kind) if beside == LLAMA_CPP else 1.0
        for what, least in (("decode", None), ("prefill", bar)):
            found = _ratios(seconds, FAST, beside, what)
            rows.append(Row(subject, f"{FAST}: {what}, x {beside}", found, "x", least))
    own = seconds["ptir"]
    shares = [
        DECODED * held / spent / probe
        for spent, probe in zip(own["decode"], own["probe"], strict=True)
    ]
    rows.append(Row(subject, "ptir: decode, share of the probe", shares, "%"))
    rows.append(Row(subject, "weights that a token reads, over the file's", [held / stored], "x"))
    return rows


def _ratios(seconds: Seconds, peer: str, beside: str, what: str) -> list[float]:
    """The time of what we stand beside over a peer's, round by round."""
    pairs = zip(seconds[beside][what], seconds[peer][what], strict=True)
    return [theirs / own for theirs, own in pairs]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["gpt2", "llama-0.5b"])
    parser.add_argument("--types", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--peer", choices=PEERS, default=LLAMA_CPP)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--fast", action="store_true", help="with rounded activations beside")
    parser.add_argument("--folder", type=Path, help="where GGUF files are kept")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not has_llama():
        parser.error("llama.cpp is not here: pip install llama-cpp-python gguf")
    given.llama = True
    return given


def main() -> None:
    """Measure file by file."""
    given = arguments()
    reported = Reported(given)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for model in given.models:
            for kind in MODELS[model].types:
                if kind in given.types:
                    reported.add(partial(rows_of, model, kind, folder, given))
    reported.judge()


if __name__ == "__main__":
    main()
