"""The page of models: every family that is defined, with what scripts/measure_models.py found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.table import LAYOUTS
from ptir.models.table import HEARS, MODELS, READS, ModelDefinition, load_modules

FILE: Final = Path(__file__).resolve().parent.parent / "docs" / "results" / "models.json"
BACKENDS: Final = {"ref": "NumPy", "c": "C", "opencl": "PoCL"}

INTRO = """
# Models

Which families run, by the `model_type` of a checkpoint's `config.json`; how far each was off from
Transformers; and how fast it is. Any checkpoint of a family opens with `ptir run FOLDER`;
`ptir run random:NAME` needs none. Another family is [one file](guides/add-a-model.md).

*Off* is the greatest difference of logits to Transformers {transformers} (PyTorch {torch}, f32)
over the greatest logit, on NumPy, C and PoCL, for 40 tokens through the tiny preset with random
weights; *tokens* says whether 64 greedy ones after them were on all three what Transformers chooses
in their places when it sees the whole text at once (the factors of `longrope` are those of the
whole text then, as they are here; its `generate` takes short ones until a text grows beyond the
first context). Speed is that
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

IMAGES_INTRO: Final = """
## Models of images

What [models of images](guides/images.md) do, and how far scores (features of `clip`) were off for
two images of 65 x 93 pixels through the tiny preset with random weights, measured in the same way.
"""
IMAGES_HEAD: Final = ("`model_type`", "can", "off", "`random:`")
TEXTS_INTRO: Final = """
## Encoders of text

What [encoders](guides/embed.md) do, by their heads, and how far the vectors of tokens were off for
a text of 40 through the tiny preset with random weights, measured in the same way.
"""
SPEECH_INTRO: Final = """
## Models of speech

What [models of speech](guides/transcribe.md) do, how far logits were off for 40 tokens behind a
window of features through the smallest preset with random weights, and whether the text of a window
was the same on all three, measured in the same way.
"""
SPEECH_HEAD: Final = ("`model_type`", "can", "off", "tokens", "`random:`")


def page(note: str) -> str:
    """The whole page; raises ``KeyError`` for a family that was not measured."""
    load_modules()
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    alone = (n for n, one in sorted(MODELS.items()) if not one.presets and _generates(one))
    wrappers = ", ".join(f"`{name}`" for name in alone)
    intro = INTRO.format(**kept["machine"], wrappers=wrappers)
    families = kept["families"]
    parts = (
        *(note, intro, _table(families)),
        *(IMAGES_INTRO, _images(families)),
        *(TEXTS_INTRO, _images(families, READS)),
        *(SPEECH_INTRO, _images(families, HEARS)),
    )
    return "\n".join(parts) + "\n"


def _generates(definition: ModelDefinition) -> bool:
    return "generate" in definition.capabilities


def _images(families: dict[str, Any], capabilities: tuple[str, ...] = ()) -> str:
    """The table of models of images, or of those that can do what encoders or speech do."""
    head = SPEECH_HEAD if capabilities == HEARS else IMAGES_HEAD
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, one in sorted(MODELS.items()):
        kind = one.capabilities if one.capabilities in (READS, HEARS) else ()
        if _generates(one) or not one.presets or kind != capabilities:
            continue
        rows = families[name]["agreement"]
        off = ", ".join(f"{rows[backend]['off']:.0e}" for backend in BACKENDS)
        presets = ", ".join(f"`{preset}`" for preset in one.presets)
        cells = [f"`{name}`", ", ".join(one.capabilities), off]
        cells += [_tokens(rows)] if capabilities == HEARS else []
        lines.append(f"| {' | '.join((*cells, presets))} |")
    return "\n".join(lines)


def _table(families: dict[str, Any]) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    seen = (name for name, one in MODELS.items() if one.presets and _generates(one))
    for model_type in sorted(seen):
        lines.append("| " + " | ".join(_cells(model_type, families[model_type])) + " |")
    return "\n".join(lines)


def _tokens(rows: dict[str, Any]) -> str:
    return "same" if all(one["same_tokens"] for one in rows.values()) else "differ"


def _cells(model_type: str, row: dict[str, Any]) -> Iterator[str]:
    rows = row["agreement"]
    kinds = sorted({name for name, one in LAYOUTS.items() if one.model_type == model_type})
    yield f"`{model_type}`"
    yield ", ".join(f"`{name}`" for name in kinds)
    yield ", ".join(f"{rows[name]['off']:.0e}" for name in BACKENDS)
    yield _tokens(rows)
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
