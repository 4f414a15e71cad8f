"""The page of models: what scripts/measure_agreement.py and scripts/measure_speed.py found."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.table import LAYOUTS
from ptir.models.table import (
    GENERATES,
    HEARS,
    MATCHES,
    MODELS,
    READS,
    SEES,
    ModelDefinition,
    load_modules,
)

MADE_UP: Final = re.compile(r".+-(tiny|micro)(-[a-z]+)?")
"""The names of presets that are there for tests, but for what is ``REAL``."""
REAL: Final = ("whisper-tiny",)
RESULTS: Final = Path(__file__).resolve().parent.parent / "docs" / "results"
BACKENDS: Final = {"ref": "NumPy", "c": "C", "opencl": "PoCL"}
ROOMS: Final[Mapping[str | None, int]] = {"int8": 8 << 30, "int4": 20 << 30, None: 20 << 30}
"""Bytes that a process may take, by the format of its weights."""
TOLD: Final = 256 << 20
"""Bytes of weights from which the ratio of memory to them is told: below, Python is most of it."""

INTRO = """
# Models

Which models ptir runs, how exactly, how fast, and in how much memory: look up the `model_type` of
a checkpoint's `config.json`. A folder, a GGUF file or a hub id of that family opens as it is, and
`random:NAME` stands for the same architecture with random weights, so that every row can be
measured without a download. Another family is [one file](guides/add-a-model.md).

**Exactness** is the difference to Transformers {transformers} (PyTorch {torch}, f32) with the same
random weights, on the backends for NumPy, C and PoCL: the greatest one of results, in millionths of
the greatest result. *Tokens* says whether the likeliest tokens were on all three those that
Transformers chooses in their places when it sees the whole text at once (with `longrope` its
`generate` takes short factors until a text outgrows the first context). The command of a row is
`python scripts/measure_agreement.py MODEL_TYPE`.

**Speed** is that of the C backend, with nothing else running, *on*
{machines}.
Rows of different machines are not to be compared; *bandwidth* and *peak* are those of the row's.
*Weights* are the bytes that they take; *memory* is the most of the process that was resident while
it ran, Python and its libraries (about 150 MiB) included. Each row begins with its command, and
`python scripts/measure_speed.py PRESET` puts the result here.
"""

LANGUAGE: Final = """
## Models that generate text

`ptir run` and `ptir chat` are for these ([guide](guides/chat.md)). Compared are logits of 40
tokens, and 64 tokens behind them. {wrappers} are read for their text alone, as the family of their
`text_config`.
"""
LANGUAGE_SPEED: Final = """
Of each family the smallest preset that people run, with weights of `int8`, or of `int4` where those
do not fit into {rooms[int8]}. *Decoding* and *prompt* (128 tokens) are tokens a second. A token
needs its weights once, so *bandwidth*, the share of what memory gives at the same time that they
are, tells how close decoding is to the most that it could be. Other traffic is not counted in it:
`mamba2`'s layers carry 18 MiB that each token reads and writes, which makes 64% about 80%.
"""
TOO_LARGE: Final = """
Not measured, since their smallest preset does not fit into {rooms[int4]} in `int4` either: {names}.
"""
NOT_MEASURED: Final = """
Not measured yet: {names}; `python scripts/measure_speed.py PRESET` does it.
"""
IMAGES: Final = """
## Models of images

`ptir classify`, `ptir embed` and `ptir run --image` are for these ([guide](guides/images.md));
CLIP also embeds texts. Compared are scores, or CLIP's features, of two images of 65 x 93 pixels.
"""
IMAGES_SPEED: Final = """
Images a second in f32, one at a time and 8 at once. *Of peak* is floating-point operations, a
second, of 8 over the most that products of f32 matrices reach on the same cores.
"""
TEXTS: Final = """
## Encoders of text

`ptir embed`, `ptir rerank`, `ptir classify` and `ptir fill` are for these, by their heads
([guide](guides/embed.md)). Compared are the vectors of 40 tokens.
"""
TEXTS_SPEED: Final = """
32 sentences of 32 tokens at once, in f32.
"""
SPEECH: Final = """
## Models of speech

`ptir transcribe` is for these ([guide](guides/transcribe.md)). Compared are the logits of 40
tokens behind a window of features, and the text of a window.
"""
SPEECH_SPEED: Final = """
A window of 30 seconds in f32. *Hearing* is the encoder alone, *all* is from samples to 64 tokens,
both in seconds of sound a second; *decoding* is tokens a second, and *bandwidth* its share as
above. The keys and values of what was heard, which each token reads too, are not counted in it:
they are a sixth of `whisper-tiny`'s weights in the decoder.
"""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A section of the page: what is said before its two tables, and the cells of speed."""

    says: str
    says_of_speed: str
    head: tuple[str, ...]
    cells: Callable[[Row], tuple[str, ...]]
    tokens: bool = False


def _of_generation(row: Row) -> tuple[str, ...]:
    return f"{row['decode']:.3g}", f"{row['prefill']:,.0f}", f"{row['share']:.0%}"


def _of_images(row: Row) -> tuple[str, ...]:
    size = "{} x {}".format(*row["size"])
    return size, f"{row['one']:.3g}", f"{row['several']:.3g}", f"{row['share']:.0%}"


def _of_texts(row: Row) -> tuple[str, ...]:
    return f"{row['texts']:.0f}", f"{row['tokens']:,.0f}", f"{row['share']:.0%}"


def _of_speech(row: Row) -> tuple[str, ...]:
    speeds = (f"{row['encoder']:.1f} x", f"{row['real_time']:.1f} x")
    return (*speeds, f"{row['decode']:.0f}", f"{row['share']:.0%}")


_SEEING: Final = Kind(IMAGES, IMAGES_SPEED, ("pixels", "one", "8 at once", "of peak"), _of_images)
KINDS: Final[Mapping[tuple[str, ...], Kind]] = {
    GENERATES: Kind(
        LANGUAGE,
        LANGUAGE_SPEED,
        ("decoding", "prompt", "bandwidth"),
        _of_generation,
        tokens=True,
    ),
    SEES: _SEEING,
    MATCHES: _SEEING,
    READS: Kind(TEXTS, TEXTS_SPEED, ("texts a second", "tokens a second", "of peak"), _of_texts),
    HEARS: Kind(
        SPEECH,
        SPEECH_SPEED,
        ("hearing", "all", "decoding", "bandwidth"),
        _of_speech,
        tokens=True,
    ),
}
"""By what an architecture can do (``ptir.models.table``), in the order of the page."""


def page(note: str) -> str:
    """The whole page; raises ``KeyError`` for a family whose agreement was not measured."""
    load_modules()
    agreement, speed = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("models", "model_speeds")
    )
    alone = [n for n, one in sorted(MODELS.items()) if not one.presets and _kind(one).tokens]
    facts = {
        **agreement["machine"],
        "machines": _machines(speed["presets"]),
        "wrappers": ", ".join(f"`{name}`" for name in alone),
        "rooms": {quant: f"{room >> 30} GiB" for quant, room in ROOMS.items()},
    }
    parts = [note, INTRO.format(**facts)]
    for kind in dict.fromkeys(KINDS.values()):
        parts += _section(kind, agreement["families"], speed["presets"], facts)
    return "\n".join(parts) + "\n"


def is_real(preset: str) -> bool:
    """Whether a preset is the size of a model that people run."""
    return preset in REAL or not MADE_UP.fullmatch(preset)


def _kind(definition: ModelDefinition) -> Kind:
    able = definition.capabilities
    return KINDS[GENERATES if "generate" in able else able]


def _section(
    kind: Kind, families: Mapping[str, Row], presets: Mapping[str, Row], facts: Row
) -> Iterator[str]:
    """A kind's two tables with what is said of them."""
    found = [name for name, one in sorted(MODELS.items()) if one.presets and _kind(one) is kind]
    yield kind.says.format(**facts)
    layouts = {one.model_type for one in LAYOUTS.values()} & {*found}
    head = ("`model_type`", *(("GGUF",) if layouts else ()), *BACKENDS.values())
    head = (*head, *(("tokens",) if kind.tokens else ()), "`random:`")
    yield _table(head, ([*_agreed(kind, name, families[name], layouts)] for name in found))
    yield kind.says_of_speed.format(**facts)
    rows = {
        name: presets[name] for model in found for name in MODELS[model].presets if name in presets
    }
    head = ("command", "on", *kind.head, "weights, MiB", "memory, MiB")
    measured = (row for row in rows.values() if "command" in row)
    yield _table(head, ([*_timed(kind, row, marks(presets)[on(row)])] for row in measured))
    yield from _lacking(found, rows, facts)


def _lacking(found: Sequence[str], rows: Mapping[str, Row], facts: Row) -> Iterator[str]:
    """Which families have no speed, and why."""
    large = [
        f"`{name}` of `{row['model_type']}` (about {row['needs'] / 2**30:.0f} GiB)"
        for name, row in rows.items()
        if "needs" in row
    ]
    if large:
        yield TOO_LARGE.format(names=", ".join(large), **facts)
    told = {row["model_type"] for row in rows.values()}
    others = [f"`{name}`" for name in found if name not in told]
    if others:
        yield NOT_MEASURED.format(names=", ".join(others))


def _agreed(kind: Kind, name: str, family: Row, layouts: Sequence[str] | set[str]) -> Iterator[str]:
    rows = family["agreement"]
    yield f"`{name}`"
    if layouts:
        kinds = sorted({arch for arch, one in LAYOUTS.items() if one.model_type == name})
        yield ", ".join(f"`{arch}`" for arch in kinds)
    yield from (f"{1e6 * rows[backend]['off']:.1f}" for backend in BACKENDS)
    if kind.tokens:
        yield "same" if all(one["same_tokens"] for one in rows.values()) else "differ"
    yield ", ".join(f"`{preset}`" for preset in MODELS[name].presets if is_real(preset))


def on(row: Row) -> str:
    """The machine of a row."""
    return f"{row['cores']} cores of {row['processor']}"


def marks(presets: Mapping[str, Row]) -> dict[str, str]:
    """A letter for each machine, that of most rows first."""
    counted = Counter(on(row) for row in presets.values() if "command" in row)
    return {machine: chr(ord("A") + n) for n, (machine, _) in enumerate(counted.most_common())}


def _machines(presets: Mapping[str, Row]) -> str:
    return ", ".join(f"{mark}: {machine}" for machine, mark in marks(presets).items())


def _timed(kind: Kind, row: Row, mark: str) -> Iterator[str]:
    yield f"`{row['command']}`"
    yield mark
    yield from kind.cells(row)
    yield f"{row['weights'] / 2**20:,.0f}"
    more = f" ({row['memory'] / row['weights']:.2f} x)" if row["weights"] >= TOLD else ""
    yield f"{row['memory'] / 2**20:,.0f}{more}"


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
