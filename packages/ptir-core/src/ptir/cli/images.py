"""What ``ptir run --image`` shows: the likeliest classes of images, or their features."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial, reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, session
from ptir.cli.model import Formats, open_model
from ptir.errors import UsageError

if TYPE_CHECKING:
    from ptir.runtime.image_model import ImageModel

SHOWN: Final = 5
"""Classes that are shown of an image unless --top-k says how many."""
OPTIONS: Final = (
    click.option(
        "--image",
        "images",
        multiple=True,
        metavar="FILE",
        help="Say what an image shows; - reads stdin. Repeatable. --top-k: how many classes.",
    ),
    click.option(
        "--label",
        "candidates",
        multiple=True,
        metavar="TEXT",
        help="What it may show, for a model of images and texts. Repeatable.",
    ),
    click.option(
        "--labels",
        "labels_file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Names of the classes, one a line, instead of the model's.",
    ),
)


@dataclass(frozen=True)
class Images:
    """What the command line says of images: files, what they may show, names of classes."""

    given: tuple[str, ...]
    candidates: tuple[str, ...]
    labels_file: Path | None


def image_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of ``Images``, which it takes as ``images``."""

    @wraps(command)
    def collected(
        *given: Any,
        images: tuple[str, ...],
        candidates: tuple[str, ...],
        labels_file: Path | None,
        **named: Any,
    ) -> Any:
        if not images and (candidates or labels_file):
            raise click.UsageError("--label and --labels are about images; give --image too")
        return command(*given, images=Images(images, candidates, labels_file), **named)

    return reduce(lambda wrapped, option: option(wrapped), reversed(OPTIONS), collected)


def show_images(
    common: CommonOptions, model: str, formats: Formats, images: Images, top_k: int
) -> None:
    """Print the ``top_k`` likeliest classes of each image, or features where there are none."""
    with session(common):
        loaded = cast("ImageModel", open_model(common, model, formats, needs="embed"))
        if loaded.reads_texts:
            raise UsageError(f"model {model!r} takes texts, not images; see `ptir embed`")
        finish = show_loaded(common, loaded, formats, images, top_k)
    finish()


def show_loaded(
    common: CommonOptions, loaded: ImageModel, formats: Formats, images: Images, top_k: int
) -> Callable[[], None]:
    """The same of a model in its session; what is returned prints the result, behind it."""
    if images.given.count("-") > 1:
        raise click.UsageError("--image -: stdin is one image; give it once")
    _note(loaded)
    classifies = "classify" in loaded.capabilities
    if images.labels_file is not None:
        loaded.require("classify")
        loaded.name_classes(images.labels_file)
    files = [sys.stdin.buffer.read() if one == "-" else one for one in images.given]
    before = loaded.target.backend.stats(loaded.target.device).host_fallback_ops
    began = time.perf_counter()
    if classifies:
        found = loaded.classify(files, top_k=top_k, labels=images.candidates)
        rows = [[asdict(one) for one in row] for row in found]
    else:
        rows = loaded.embed(files).tolist()
    stats = _stats(loaded, time.perf_counter() - began, before)
    return partial(_show, common, loaded, formats, images, rows, stats, classifies)


def _show(
    common: CommonOptions,
    loaded: ImageModel,
    formats: Formats,
    images: Images,
    rows: list[Any],
    stats: dict[str, Any],
    classifies: bool,
) -> None:
    kind = "labels" if classifies else "embedding"
    if common.json:
        named = [{"image": n, kind: row} for n, row in zip(images.given, rows, strict=True)]
        show.value({"images": named, "stats": stats, "formats": formats.chosen(loaded)})
        return
    _print(images.given, rows, classifies)
    show.note(
        f"{len(rows)} image{'s' * (len(rows) > 1)} in {stats['seconds']:.2f} s on"
        f" {stats['backend']} ({stats['device']}); {stats['host_fallback_ops']} ops ran elsewhere"
    )


def _note(loaded: ImageModel) -> None:
    from ptir.runtime.specs import RANDOM

    if loaded.name.startswith(RANDOM):
        show.note(f"{loaded.name} has random weights: what it sees is noise")
    elif not loaded.says_preprocessing:
        show.note(
            "the model does not say how images are prepared (preprocessor_config.json); the way of"
            " its family is taken"
        )


def _stats(loaded: ImageModel, seconds: float, before: int) -> dict[str, Any]:
    backend, device = loaded.target.backend, loaded.target.device
    return {
        "seconds": seconds,
        "load_seconds": loaded.load_seconds,
        "backend": backend.name,
        "device": device.name,
        "host_fallback_ops": backend.stats(device).host_fallback_ops - before,
    }


def _print(names: tuple[str, ...], rows: list[Any], classifies: bool) -> None:
    if not classifies:
        for row in rows:
            click.echo(" ".join(f"{number:.6g}" for number in row))
        return
    several = len(names) > 1
    lines = [
        (*([name] if several else []), f"{one['probability']:.2%}", one["name"])
        for name, found in zip(names, rows, strict=True)
        for one in found
    ]
    show.table((*(["image"] if several else []), "probability", "class"), lines)
