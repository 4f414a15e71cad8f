"""GPT-2 124M on a CPU: ptir's reference backend beside PyTorch eager through transformers.

Same random weights, float32, all cores, logits of the last position only on both sides. Rounds
alternate (ptir, torch, ptir, torch, ...), each decode figure is bracketed by a read-bandwidth
probe, and only ratios of the same run are worth quoting. Writes JSON; needs
``pip install torch transformers``.

    python benchmarks/gpt2_cpu.py --rounds 7 --json out.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ptir.cli.bandwidth import host_probe
from ptir.peers.definitions import GENERATE, open_peer

PREFILL = 512
DECODE = 48
CONTEXT = 64


def probe_bandwidth() -> float:
    """Read bandwidth in GB/s (see ``ptir.cli.bandwidth``)."""
    return host_probe().bandwidth() / 1e9


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Ptir:
    """The model through ``ptir``."""

    def __init__(self, folder: Path, backend: str) -> None:
        import ptir
        from ptir.runtime.session import Session

        self.model = ptir.load_model(folder, backend=backend)
        self._session = lambda capacity: Session.of(self.model, 1, capacity)

    def prefill(self, tokens: list[int]) -> float:
        """Seconds for a prompt, up to its last logits."""
        session = self._session(1024)
        return _timed(lambda: session.prefill([tokens]))

    def decode(self, tokens: list[int], count: int) -> float:
        """Seconds per generated token."""
        session = self._session(1024)
        session.pick(session.prefill([tokens]))
        active = np.ones(1, bool)

        def work() -> None:
            for _ in range(count):
                session.advance(active)

        return _timed(work) / count


class Torch:
    """The same checkpoint through transformers, eager, inference mode."""

    def __init__(self, folder: Path) -> None:
        self.model = open_peer(folder, GENERATE)

    def prefill(self, tokens: list[int]) -> float:
        """Seconds for a prompt, up to its last logits."""
        return self.model.prefill_seconds(np.asarray(tokens, np.int32))

    def decode(self, tokens: list[int], count: int) -> float:
        """Seconds per generated token."""
        return self.model.decode_seconds(np.asarray(tokens, np.int32), count) / count


def measure(peers: dict[str, Any], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of every peer in alternating rounds, after one warm-up round."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 50257, PREFILL).tolist()
    samples: dict[str, dict[str, list[float]]] = {
        name: {"prefill": [], "decode": [], "probe": []} for name in peers
    }
    for round_number in range(rounds + 1):
        for name, peer in peers.items():
            before = probe_bandwidth()
            decode = peer.decode(prompt[:CONTEXT], DECODE)
            after = probe_bandwidth()
            prefill = peer.prefill(prompt)
            if round_number:
                samples[name]["prefill"].append(prefill)
                samples[name]["decode"].append(decode)
                samples[name]["probe"].append((before + after) / 2)
    return samples


def report(samples: dict[str, dict[str, list[float]]], weights: int) -> dict[str, Any]:
    """Medians, spreads and ratios."""
    rows: dict[str, Any] = {}
    for name, found in samples.items():
        decode, prefill = statistics.median(found["decode"]), statistics.median(found["prefill"])
        shares = [
            weights / d / 1e9 / p for d, p in zip(found["decode"], found["probe"], strict=True)
        ]
        rows[name] = {
            "decode_tok_s": 1 / decode,
            "decode_spread": [1 / max(found["decode"]), 1 / min(found["decode"])],
            "bandwidth_share": statistics.median(shares),
            "prefill_tok_s": PREFILL / prefill,
            "prefill_spread": [PREFILL / max(found["prefill"]), PREFILL / min(found["prefill"])],
        }
    ours, theirs = rows["ptir"], rows["torch"]
    return {
        "rows": rows,
        "decode_ratio": ours["decode_tok_s"] / theirs["decode_tok_s"],
        "prefill_ratio": ours["prefill_tok_s"] / theirs["prefill_tok_s"],
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backend", default="ref")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from ptir.checkpoint import save_folder
    from ptir.runtime.specs import resolve

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpt2"
        save_folder(resolve("random:gpt2"), path)
        peers = {"ptir": Ptir(path, options.backend), "torch": Torch(path)}
        samples = measure(peers, options.rounds)
    weights = 124_439_808 * 4
    result = report(samples, weights) | {"samples": samples, "machine": platform.platform()}
    for name, row in result["rows"].items():
        print(
            f"{name:6} decode {row['decode_tok_s']:6.1f} tok/s"
            f" [{row['decode_spread'][0]:.1f}, {row['decode_spread'][1]:.1f}]"
            f" ({row['bandwidth_share']:.0%} of the probe)"
            f"  prefill {row['prefill_tok_s']:7.1f} tok/s"
            f" [{row['prefill_spread'][0]:.0f}, {row['prefill_spread'][1]:.0f}]"
        )
    print(f"ratio  decode {result['decode_ratio']:.2f}x  prefill {result['prefill_ratio']:.2f}x")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
