"""GGUF files beside llama.cpp: one file of each type, read by both, decoding and a prompt of 512.

llama.cpp's own quantizer writes the files, from random weights in f16: GPT-2 124M, and a Llama of
0.5B parameters (28 layers, 1,024 wide, 16 heads of 128, 8 of them of keys, 3,072 inner). Peers
run in processes of their own and alternate; ratios are taken within a round, and the table shows
medians and spreads. Needs ``pip install llama-cpp-python gguf``.

    python benchmarks/gguf_speed.py --types Q8_0 Q4_K_M --json benchmarks/results/gguf-c.json
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from measuring.bars import Row
from measuring.llama import quantized_file
from measuring.models import DECODED, FAST, PROMPT, Seconds, add_round, tokens
from measuring.probing import PIECES
from measuring.reported import Reported
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
MODELS: Final = ("gpt2", "llama-0.5b")

TYPES: Final[dict[str, tuple[float, float]]] = {
    "Q8_0": (1.7, 1.9),
    "Q4_0": (1.7, 1.1),
    "Q4_1": (1.0, 1.1),
    "Q5_0": (1.5, 1.1),
    "Q5_1": (1.0, 1.1),
    "Q2_K": (1.0, 1.1),
    "Q3_K_M": (1.0, 1.1),
    "Q4_K_M": (1.5, 1.1),
    "Q5_K_M": (1.4, 1.1),
    "Q6_K": (1.4, 1.1),
    "IQ4_NL": (1.0, 1.1),
    "IQ4_XS": (1.4, 1.1),
    "IQ3_S": (1.0, 1.1),
    "TQ2_0": (1.0, 1.1),
}
"""What llama.cpp calls a file, and the bars of decoding and of a prompt, over llama.cpp."""
FAST_PROMPT: Final = {"Q8_0": 4.0, "Q4_0": 2.4, "Q4_K_M": 2.4}
"""The bars of a prompt with activations rounded to bytes (``--fast``), which llama.cpp's are."""


def plain_file(model: str, folder: Path) -> Path:
    """A model of random weights as a GGUF file in f16; what is there already is kept."""
    from ptir.checkpoint import Checkpoint
    from ptir.models import definition
    from ptir.params.source import RandomSource
    from ptir.runtime.gguf_file import save_gguf
    from ptir.runtime.specs import parameter_types, resolve
    from ptir.types import F16

    path = folder / f"{model}-f16.gguf"
    if path.exists():
        return path
    if model == "gpt2":
        checkpoint = resolve("random:gpt2")
    else:
        types = parameter_types(definition("llama"), LLAMA)
        source = RandomSource(
            types,
            seed=0,
            scale_fn=lambda name, type_: 0.02,
            offset_fn=lambda name, type_: float("norm" in name),
        )
        checkpoint = Checkpoint(Path(model), LLAMA, {}, {}, source, None, ())
    return save_gguf(checkpoint, path, dtype=F16)


def rows_of(model: str, kind: str, path: Path, given: argparse.Namespace) -> list[Row]:
    """Decoding and a prompt of one file."""
    piece = tokens(DECODED // PIECES)
    prompt = [token % LLAMA["vocab_size"] for token in tokens(PROMPT)]
    piece = [token % LLAMA["vocab_size"] for token in piece]
    given_as = {"backend": given.backend, "dtype": "f32", "quant": None, "model": str(path)}
    with ExitStack() as stack:
        peers = {
            "ptir": stack.enter_context(Worker("ptir", given.threads, **given_as)),
            **(
                {FAST: stack.enter_context(Worker("ptir", given.threads, **given_as, fast=True))}
                if given.fast
                else {}
            ),
            "llama.cpp": stack.enter_context(
                Worker("llama.cpp", path=str(path), threads=given.threads)
            ),
        }
        seconds: Seconds = {peer: defaultdict(list) for peer in peers}
        for number in range(given.rounds + 1):  # the first one warms up
            add_round(seconds if number else {}, peers, piece, prompt, given.threads)
        held = peers["ptir"].call("facts")["weight_bytes"]
        stored = peers["llama.cpp"].call("facts")["weight_bytes"]
    return list(_table(f"{model} {kind}", kind, seconds, held, stored))


def _table(
    subject: str,
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
    for what, bar in zip(("decode", "prefill"), TYPES[kind], strict=True):
        rows.append(Row(subject, f"{what}, x llama.cpp", _ratios(seconds, "ptir", what), "x", bar))
    if FAST in seconds:
        for what, least in (("decode", None), ("prefill", FAST_PROMPT.get(kind))):
            figure = f"{FAST}: {what}, x llama.cpp"
            rows.append(Row(subject, figure, _ratios(seconds, FAST, what), "x", least))
    own = seconds["ptir"]
    shares = [
        DECODED * held / spent / probe
        for spent, probe in zip(own["decode"], own["probe"], strict=True)
    ]
    rows.append(Row(subject, "ptir: decode, share of the probe", shares, "%"))
    rows.append(Row(subject, "weights that a token reads, over the file's", [held / stored], "x"))
    return rows


def _ratios(seconds: Seconds, peer: str, what: str) -> list[float]:
    """llama.cpp's time over a peer's, round by round."""
    pairs = zip(seconds["llama.cpp"][what], seconds[peer][what], strict=True)
    return [theirs / own for theirs, own in pairs]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
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
            plain = plain_file(model, folder)
            for kind in given.types:
                path = quantized_file(plain, folder / f"{model}-{kind}.gguf", kind)
                reported.add(partial(rows_of, model, kind, path, given))
    reported.judge()


if __name__ == "__main__":
    main()
