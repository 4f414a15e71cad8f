"""Measures presets of every kind of model with ``ptir bench``: speed, and the memory that it takes.

``python scripts/measure_speed.py [PRESET ...]`` writes docs/results/model_speeds.json, from which
scripts/generate_docs.py makes docs/models.md; presets that are not named keep their rows. Without
names it measures what people run: the smallest preset of each family that generates, and of others
all up to ``LARGEST``. A preset has random weights and a process of its own, whose command its row
tells. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from models_page import ROOMS, is_real

import ptir
from ptir.models import ModelDefinition
from ptir.models.table import GENERATES, HEARS, MATCHES, MODELS, READS, SEES, load_modules, preset
from ptir.params.processors import usable_processors
from ptir.runtime.kinds import row_of
from ptir.runtime.recorded import image_size
from ptir.runtime.specs import parameter_types

FILE: Final = Path(__file__).resolve().parent.parent / "docs" / "results" / "model_speeds.json"
BESIDES: Final = 1 << 30
"""Bytes that it takes besides weights: the interpreter, the probe of bandwidth, activations."""
LARGEST: Final = 200_000_000
"""Weights of the largest preset of a family that generates no text."""
PROGRAM: Final = [str(Path(sys.executable).with_name("ptir"))]

Report = Mapping[str, Any]


def _of_generation(report: Report, model: Any) -> dict[str, Any]:
    prompt, decoding = report["rows"]
    return {
        "decode": decoding["tokens_per_second"]["median"],
        "share": decoding["bandwidth_share"],
        "prefill": prompt["tokens_per_second"]["median"],
    }


def _of_images(report: Report, model: Any) -> dict[str, Any]:
    one, several = report["rows"]
    return {
        "one": one["images_per_second"]["median"],
        "several": several["images_per_second"]["median"],
        "share": several["flops_share"],
        "size": image_size(model),
    }


def _of_texts(report: Report, model: Any) -> dict[str, Any]:
    (row,) = report["rows"]
    return {
        "texts": row["rows"] / row["seconds"],
        "tokens": row["tokens_per_second"]["median"],
        "share": row["flops_share"],
    }


def _of_speech(report: Report, model: Any) -> dict[str, Any]:
    heard, decoding, both = report["rows"]
    return {
        "encoder": heard["real_time"],
        "decode": decoding["tokens_per_second"]["median"],
        "share": decoding["bandwidth_share"],
        "real_time": both["real_time"],
    }


@dataclass(frozen=True)
class Kind:
    """How a kind of model is measured: options of ``ptir bench``, and what is kept of its report.

    ``formats`` are those of weights, of which the first that fits is taken.
    """

    options: tuple[str, ...]
    kept: Callable[[Report, Any], dict[str, Any]]
    formats: tuple[str | None, ...] = (None,)


IMAGES: Final = Kind((), _of_images)
KINDS: Final[Mapping[tuple[str, ...], Kind]] = {
    GENERATES: Kind(("-p", "128", "-n", "32"), _of_generation, ("int8", "int4")),
    SEES: IMAGES,
    MATCHES: IMAGES,
    READS: Kind(("-p", "32", "--batch", "32"), _of_texts),
    HEARS: Kind((), _of_speech),
}
"""By what an architecture can do (``ptir.models.table``)."""


def sizes(definition: ModelDefinition, name: str) -> list[int]:
    """How many weights each parameter of a preset has."""
    config = {**definition.defaults, **definition.presets[name]}
    return [type.size for type in parameter_types(definition, config).values()]


def chosen(definition: ModelDefinition) -> Iterator[str]:
    """The presets of a family that are measured."""
    found = {name: sum(sizes(definition, name)) for name in definition.presets if is_real(name)}
    smallest = min(found, key=lambda name: found[name])
    most = 0 if "generate" in definition.capabilities else LARGEST
    yield from (name for name, size in found.items() if name == smallest or size <= most)


def measured(name: str) -> dict[str, Any]:
    """The row of a preset: what ``ptir bench`` says of it, or how much room it would need."""
    definition, _ = preset(name)
    largest = 4 * max(sizes(definition, name))  # it is drawn in f32 before it is quantized
    needs, room = math.inf, 0
    for quant in row_of(KINDS, ptir.load_model(f"random:{name}", backend="c")).formats:
        model = ptir.load_model(f"random:{name}", backend="c", quant=quant)
        weights = sum(model.store.type(one).nbytes for one in model.store.source.names())
        needs, room = weights + largest + BESIDES, ROOMS[quant]
        if needs <= room:
            return _benched(name, model, quant, weights)
    return {"model_type": definition.model_type, "needs": needs, "room": room}


def _benched(name: str, model: Any, quant: str | None, weights: int) -> dict[str, Any]:
    kind = row_of(KINDS, model)
    format = () if quant is None else ("--quant", quant)
    words = ["bench", f"random:{name}", "--backend", "c", *format, *kind.options]
    done = subprocess.run(
        [*PROGRAM, *words, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    report = json.loads(done.stdout)
    memory = [row["peak_resident_bytes"] for row in report["rows"]]
    return {
        "model_type": model.checkpoint.config["model_type"],
        "command": " ".join(["ptir", *words]),
        "weights": weights,
        "memory": None if None in memory else max(memory),
        "measured": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **processor(),
        **kind.kept(report, model),
    }


def processor() -> dict[str, Any]:
    """What it was measured on: rows of several machines stand side by side."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line for line in lines if line.startswith("model name")), ": unknown")
    return {"processor": model.split(": ")[1], "cores": usable_processors()}


def keep(file: Path, what: str, beside: Report, rows: Iterable[tuple[str, Report]]) -> None:
    """Put rows into a file as soon as they are there, and what else is to stand there."""
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {what: {}}
    for name, row in rows:
        kept.update(beside)
        kept[what][name] = row
        file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(name, json.dumps(row), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure presets, and keep the file after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="*")
    given = parser.parse_args(arguments)
    load_modules()
    families = (definition for _, definition in sorted(MODELS.items()) if definition.presets)
    names = given.preset or [one for family in families for one in chosen(family)]
    keep(FILE, "presets", {}, ((name, measured(name)) for name in names))


if __name__ == "__main__":
    main()
