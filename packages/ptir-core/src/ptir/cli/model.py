"""What commands that take a model share: its argument, its formats, and loading it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.weights import QUANTIZERS

if TYPE_CHECKING:
    from ptir.backend.contract import Target
    from ptir.cli.common import CommonOptions
    from ptir.runtime import Model

model_argument: Callable[[Any], Any] = click.argument("model")
FLOATS: Final = click.Choice(["f32", "bf16", "f16"])
"""What floats may be stored as."""
HELD: Final = click.Choice(["auto", *FLOATS.choices])
"""The same, or what is best for the file."""
OPTIONS: Final = (
    click.option(
        "--dtype",
        type=HELD,
        default="auto",
        show_default=True,
        help="Storage type of the weights on the device; auto: as the file stores them.",
    ),
    click.option(
        "--quant",
        type=click.Choice(list(QUANTIZERS)),
        help="Quantize the weights while they load, groups of 32 rounded to nearest.",
    ),
    click.option(
        "--cache-dtype",
        type=HELD,
        default="auto",
        show_default=True,
        help="Type of the key and value cache; auto: f32, which loses nothing.",
    ),
    click.option(
        "--swa-full",
        is_flag=True,
        help="Keep keys and values of the whole text in layers with a window, too.",
    ),
    click.option(
        "--fast",
        is_flag=True,
        help="Round activations (to bf16, or to int8 with --quant or blocks, convolutions of images"
        " included) for dot instructions.",
    ),
    click.option(
        "--device-memory",
        metavar="BYTES",
        help="Most bytes (2GiB, 500MB) of weights and caches at once; what does not fit is read"
        " again.",
    ),
)
PROPOSERS: Final = ("lookup", "nextn", "auto")
"""The names of ``ptir.runtime.speculation.PROPOSERS``, which is not imported for them."""
SPECULATION: Final = (
    click.option(
        "--speculate",
        type=click.Choice(PROPOSERS),
        help="Verify several tokens in one step: those that followed the same ones before"
        " (lookup), those that the model's own head predicts (nextn), or of these what the model"
        " has (auto).",
    ),
    click.option(
        "--draft", metavar="MODEL", help="Verify what a smaller model of the same tokens proposes."
    ),
)
INPUTS: Final = (
    click.argument("prompt", required=False),
    click.option(
        "-p", "--prompt", "prompt_option", metavar="TEXT", help="The prompt; - reads stdin."
    ),
    click.option("--tokens", metavar="IDS", help="Token ids, comma-separated, instead of a text."),
)


@dataclass(frozen=True)
class Formats:
    """The numbers that a model is to be computed with, as the command line says, and where."""

    dtype: str
    quant: str | None
    cache_dtype: str
    fast: bool
    device_memory: str | None = None
    swa_full: bool = False

    def weights(self, model: Model) -> str:
        """What tables call the format of a model's weights: what its file stores, or these."""
        from ptir.params import stored_formats

        stored = {format.name for format in stored_formats(model.checkpoint.source).values()}
        return self.quant or "+".join(sorted(stored) or model.store.matrix_dtypes)

    def chosen(self, model: Model) -> dict[str, Any]:
        """The same for programs, with what ``auto`` chose for a model.

        ``dtype`` is null where all matrices are quantized.
        """
        dtype = "+".join(model.store.matrix_dtypes) or None
        return {**self.given(), "dtype": dtype, "cache_dtype": model.cache_dtype.name}

    def given(self) -> dict[str, Any]:
        """What was said, for programs; of the last two only what was."""
        every, unsaid = asdict(self), {"device_memory": None, "swa_full": False}
        return {key: one for key, one in every.items() if key not in unsaid or one != unsaid[key]}


def format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of ``Formats``, which it takes as ``formats``."""

    @wraps(command)
    def collected(*given: Any, **named: Any) -> Any:
        formats = Formats(**{field.name: named.pop(field.name) for field in fields(Formats)})
        return command(*given, formats=formats, **named)

    return reduce(lambda wrapped, option: option(wrapped), reversed(OPTIONS), collected)


def open_model(
    common: CommonOptions,
    model: str,
    formats: Formats,
    needs: str = "generate",
    target: Target | None = None,
) -> Model:
    """Load ``model`` on the target of ``--backend``, or another; ``--seed`` seeds random weights.

    Raises ``UnsupportedError`` for one that cannot do what the command ``needs``.
    """
    from ptir.cli.common import open_target
    from ptir.runtime import load_model

    options = {"seed": common.seed or 0, **asdict(formats)}
    loaded = load_model(model, backend=target or open_target(common), **options)
    loaded.require(needs)
    return loaded


def streaming(model: Model) -> Callable[[], str] | None:
    """What says how much was fetched under a budget so far; None where there is none."""
    from ptir.units import size

    stream = model.store.streamed
    if stream is None:
        return None

    def said() -> str:
        fetched, most = size(stream.counters.bytes_read), size(stream.resident.peak)
        return f"{fetched or '0 B'} of weights fetched, at most {most or '0 B'} at once"

    return said


def streamed_record(model: Model) -> dict[str, Any]:
    """The same for programs, as an entry of what a command prints; none without a budget."""
    stream = model.store.streamed
    if stream is None:
        return {}
    counted = {
        "budget_bytes": stream.budget,
        "fetched_bytes": stream.counters.bytes_read,
        "resident_bytes_at_most": stream.resident.peak,
    }
    return {"streamed": counted}


def speculation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what ``speculation`` takes: ``speculate`` and ``draft``."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(SPECULATION), command)


def speculation(
    common: CommonOptions, formats: Formats, speculate: str | None, draft: str | None
) -> str | Model | None:
    """What ``Model.run`` takes as ``speculate``; a draft is loaded as the model is."""
    if draft is None:
        return speculate
    if speculate is not None:
        raise click.UsageError("give --speculate or --draft, not both: one of them proposes")
    return open_model(common, draft, formats)


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what ``given_input`` takes: ``prompt``, ``prompt_option`` and ``tokens``."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(INPUTS), command)


window_option = click.option(
    "--window",
    type=click.IntRange(2),
    metavar="N",
    help="Tokens of a window; default: 512, or the context where that is smaller.",
)


def given_input(argument: str | None, option: str | None, tokens: str | None) -> str | list[int]:
    """The text of the argument or of ``-p`` (``-p -`` reads stdin), or the ids of ``--tokens``.

    Raises a usage error unless exactly one of them is given.
    """
    if [argument, option, tokens].count(None) != 2:
        raise click.UsageError(
            "give the prompt once: as an argument, with -p TEXT"
            ' ("-p -": stdin) or as ids with --tokens 1,2,3'
        )
    if tokens is not None:
        return _ids(tokens)
    return _stdin() if option == "-" else str(option if argument is None else argument)


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--tokens {text!r}: integers separated by commas") from error


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"stdin is not UTF-8 text: {error}") from error
