"""``ptir warmup``: build what a model's generation needs, so that later runs build nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import Formats, format_options, model_argument, open_model
from ptir.errors import UsageError

if TYPE_CHECKING:
    from ptir.runtime import Model

PROMPT: Final = 128
"""Tokens of the chunk that is measured."""


@click.command()
@model_argument
@click.option(
    "-n", "--tokens", type=click.IntRange(1), help="Only runs of N tokens, prompt included."
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Prompts, or windows of sound, at once.",
)
@click.option(
    "--tune", "tuned", is_flag=True, help="First measure which kernel sizes are fastest here."
)
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    tokens: int | None,
    batch: int,
    tuned: bool,
    formats: Formats,
) -> None:
    """Build and cache the kernels that MODEL needs to generate or transcribe, greedy and sampled.

    Later runs on the same device, in any process, build nothing. With --tune, the model's products
    are measured with other tile sizes before; the choice is kept for the device and driver until
    the next --tune or `ptir cache clear`.
    """
    from ptir.runtime.warmup import warm_up

    with session(common):
        found = _tune(open_model(common, model, formats), batch) if tuned else None
        loaded = open_model(common, model, formats, or_else="transcribe")
        hears = "transcribe" in loaded.capabilities
        sizes = f"up to {batch} windows" if hears else "caches of every size"
        total = f"for caches of {tokens} tokens" if tokens else f"for {sizes}"
        show.note(f"warming up {model} on {loaded.target} {total}")
        what = "batch" if hears else "cache"
        done = warm_up(
            loaded, tokens, batch, lambda n, of: show.note(f"{n} of {of} {what} sizes done")
        )
    if common.json:
        where = {"backend": loaded.target.backend.name, "device": loaded.target.device.name}
        show.value({"model": model, **where, **asdict(done), "tuned": found})
        return
    show.text(
        f"{done.programs} programs in {done.seconds:.1f} s:"
        f" {done.kernel_files_built} kernel files built,"
        f" {done.kernel_files_restored} from the cache"
    )


def _tune(model: Model, batch: int) -> dict[str, Any]:
    """Measure with the model's decoding step and a chunk of a prompt; nothing runs on tokens."""
    from ptir.capture.plan import PLANS, plan_for
    from ptir.runtime.recorded import recorded_step

    tuning = model.target.backend.tuning(model.target.device)
    if tuning is None:
        raise UsageError(f"--tune: {model.target} has no sizes to choose; leave it out")
    show.note(f"measuring kernels on {model.target}")
    lengths = (1, min(PROMPT, model.context))
    with model.policies(), tuning as outcome:
        for length in lengths:
            plan_for(recorded_step(model, batch, length, model.context).program, model.target)
    PLANS.clear()
    facts: dict[str, Any] = outcome.facts()
    sizes = ", ".join(f"{name} {value}" for name, value in facts["tiles"].items())
    show.note(f"{facts['kernels']} kernels, {facts['speedup']:.2f} times as fast with {sizes}")
    return facts
