"""The speed table: GPT-2 124M in four weight formats, beside the bars, llama.cpp and the reference.

Every peer runs in a process of its own. Peers alternate, every sixteen decoded tokens stand
between two probes of read bandwidth, and ratios are taken within a round; the table shows medians
and spreads. llama.cpp is left out, and said to be, where it is not installed
(``pip install llama-cpp-python gguf``, some minutes of building).

    python benchmarks/speed.py --backend opencl --json speed.json
    python benchmarks/speed.py --backend c --threads 1 2 --fast --json speed.json
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from measuring import bars
from measuring.bars import FORMATS, Row
from measuring.images import convolution_rows
from measuring.models import model_rows
from measuring.reported import Reported
from measuring.rows import kernel_rows
from measuring.starts import cold_rows, compile_rows, demo_rows
from measuring.steps import context_rows, prompt_rows

CACHES = ("f32", "bf16")


def has_llama() -> bool:
    """Whether llama.cpp and what writes its files are installed."""
    return all(importlib.util.find_spec(name) for name in ("llama_cpp", "gguf"))


Measure = tuple[Callable[..., list[Row]], tuple[Any, ...]]


def parts(given: argparse.Namespace, section: str, folder: Path) -> Iterator[Measure]:
    """What a section measures, one part after the other."""
    if section == "models":
        for name in given.formats:
            yield from ((model_rows, (name, folder, threads)) for threads in given.threads)
    elif section == "contexts":
        for name in given.formats:
            yield from ((context_rows, (name, cache)) for cache in CACHES)
    elif section == "convolutions":
        yield from ((convolution_rows, (threads,)) for threads in given.threads)
    elif section in BY_FORMAT:
        yield from ((BY_FORMAT[section], (name,)) for name in given.formats)
    else:
        yield ALONE[section], ()


BY_FORMAT: dict[str, Callable[..., list[Row]]] = {"prompts": prompt_rows, "compile": compile_rows}
ALONE: dict[str, Callable[..., list[Row]]] = {
    "rows": kernel_rows,
    "cold": cold_rows,
    "demo": demo_rows,
}
SECTIONS = ("models", "prompts", "contexts", "compile", *ALONE, "convolutions")


def arguments() -> argparse.Namespace:
    """The command line; without llama.cpp that peer is left out, which is said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[2], help="of llama.cpp and C; bars hold for most"
    )
    parser.add_argument("--bars", choices=bars.BARS, help="by default second for c, else first")
    parser.add_argument("--no-llama", dest="llama", action="store_false")
    parser.add_argument("--fast", action="store_true", help="with dot implementations beside")
    parser.add_argument("--no-reference", dest="reference", action="store_false")
    parser.add_argument("--folder", type=Path, help="where GGUF files are kept")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if len(given.threads) > 1 and given.backend != "c":
        parser.error(f"--threads of backend {given.backend}: only C is told how many; give one")
    if given.llama and not has_llama():
        print("without llama.cpp: pip install llama-cpp-python gguf")
        given.llama = False
    return given


def main() -> None:
    """Measure part by part."""
    given = arguments()
    reported = Reported(given)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        for section in given.sections:
            for measure, rest in parts(given, section, folder):
                reported.add(partial(measure, given, *rest))
    reported.judge()


if __name__ == "__main__":
    main()
