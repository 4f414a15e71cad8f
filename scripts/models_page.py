"""The page of models: every family that is defined, with what scripts/measure_models.py found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.table import LAYOUTS
from ptir.models.table import MODELS, load_modules

FILE: Final = Path(__file__).resolve().parent.parent / "docs" / "results" / "models.json"
BACKENDS: Final = {"ref": "NumPy", "c": "C", "opencl": "PoCL"}

INTRO = """
# Models

Which families run, by the `model_type` of a checkpoint's `config.json`; how far each was off from
Transformers; and how fast it is. Any checkpoint of a family opens with `ptir run FOLDER`;
`ptir run random:NAME` needs none. Another family is [one file](guides/add-a-model.md).

*Off* is the greatest difference of logits to Transformers {transformers} (PyTorch {torch}, f32)
over the greatest logit, on NumPy, C and PoCL, for 40 tokens through the tiny preset with random
weights; *tokens* says whether 64 greedy ones after them were the same on all three. Speed is that
of `ptir bench random:NAME --backend c --quant int8` on two cores of {processor}: tokens a second of
decoding and of a prompt of 128, the share of the bandwidth of memory that decoding reaches, and the
most memory that was held, of the smallest preset that people run, if it has at most two billion
weights; other work ran beside it. Rows are measured by
`python scripts/measure_models.py MODEL_TYPE`. {wrappers} are read for their text alone, as the
family of their `text_config`.
"""
HEAD: Final = (
    "`model_type`",
    "GGUF",
    "off",
    "tokens",
    "`random:`",
    "measured",
    "decoding",
    "prompt",
    "bandwidth",
    "memory",
)


def page(note: str) -> str:
    """The whole page; raises ``KeyError`` for a family that was not measured."""
    load_modules()
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    wrappers = ", ".join(f"`{name}`" for name, one in sorted(MODELS.items()) if not one.presets)
    intro = INTRO.format(**kept["machine"], wrappers=wrappers)
    return f"{note}\n{intro}\n{_table(kept['families'])}\n"


def _table(families: dict[str, Any]) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for model_type in sorted(name for name, found in MODELS.items() if found.presets):
        lines.append("| " + " | ".join(_cells(model_type, families[model_type])) + " |")
    return "\n".join(lines)


def _cells(model_type: str, row: dict[str, Any]) -> Iterator[str]:
    rows = row["agreement"]
    kinds = sorted({name for name, one in LAYOUTS.items() if one.model_type == model_type})
    yield f"`{model_type}`"
    yield ", ".join(f"`{name}`" for name in kinds)
    yield ", ".join(f"{rows[name]['off']:.0e}" for name in BACKENDS)
    yield "same" if all(one["same_tokens"] for one in rows.values()) else "differ"
    names = [f"`{name}`" for name in MODELS[model_type].presets]
    yield ", ".join(names)
    speed = row["speed"]
    if speed is None:
        yield from [""] * 5
        return
    yield f"`{speed['preset']}`"
    yield f"{speed['decode']:.0f}"
    yield f"{speed['prefill']:.0f}"
    yield f"{speed['share']:.0%}"
    yield f"{speed['memory'] / 2**20:,.0f} MiB"
