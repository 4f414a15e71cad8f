"""The options that say how tokens are chosen, and what stands for those that nobody gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli import show

if TYPE_CHECKING:
    from ptir.runtime import Model

TEMPERATURE: Final = 0.8
"""Where neither the command line nor the model says one."""
FILTERS: Final = (
    click.option(
        "--temp",
        "temperature",
        type=float,
        help=f"0 is greedy; default: the model's own, else {TEMPERATURE}.",
    ),
    click.option("--top-k", type=int, help="Keep the k best; 0 is off."),
    click.option("--top-p", type=float, help="Keep this probability; 1 is off."),
    click.option("--min-p", type=float, help="Keep this share of the best's; 0 is off."),
    click.option("--repetition-penalty", type=float, help="Of tokens of the text; 1 is off."),
)
"""Default of each: the model's own, else off."""
SAMPLING: Final = (
    click.option("-n", "--max-tokens", type=click.IntRange(0), help="Default: as many as fit."),
    *FILTERS,
    click.option("--stop", multiple=True, help="End at this text. Repeatable."),
)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``max_tokens``, ``stop`` and what ``chosen_sampling`` takes."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(SAMPLING), command)


def chosen_sampling(model: Model, given: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """The sampler's options: those ``given``, else the model's own, of which a note tells.

    A seed is drawn where none is given. Raises ``CheckpointError`` for a model's own that are out
    of range.
    """
    from ptir.runtime.default_sampling import APPLIED, default_sampling

    said = {name: given[name] for name in APPLIED if given.get(name) is not None}
    chosen = {"seed": _fresh_seed() if seed is None else seed, **said}
    if said.get("temperature") == 0:
        return chosen
    options, ignored = default_sampling(model.checkpoint)
    own = {name: value for name, value in options.items() if name not in said}
    if own:
        told = ", ".join(f"{name} {value:g}" for name, value in own.items())
        show.note(f"sampling as the model asks: {told}; --temp 0.8 and the like change that")
    if ignored:
        show.note(f"what the model asks besides is not applied: {', '.join(ignored)}")
    return {"temperature": TEMPERATURE, **own, **chosen}


def _fresh_seed() -> int:
    """A seed for a run that was given none."""
    import secrets

    return secrets.randbits(32)
