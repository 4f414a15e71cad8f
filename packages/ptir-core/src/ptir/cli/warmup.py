"""``ptir warmup``: build what runs of a model need, so that later runs build nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import Formats, format_options, model_argument, open_model
from ptir.errors import UsageError

if TYPE_CHECKING:
    from ptir.runtime import Model


@click.command()
@model_argument
@click.option(
    "-n",
    "--tokens",
    type=click.IntRange(1),
    help="Only generations of N tokens, prompt included, or texts of up to N.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Prompts at once, or texts, images or windows of sound up to so many.",
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
    """Build and cache the kernels that MODEL needs for all that it can do.

    That is to generate or transcribe, greedy and sampled, to embed, classify, fill or rank. Later
    runs on the same device, in any process, build nothing. With --tune, the model's products
    are measured with other tile sizes before; the choice is kept for the device and driver until
    the next --tune or `ptir cache clear`.
    """
    from ptir.runtime.kinds import kind_of
    from ptir.runtime.warmup import warm_up

    with session(common):
        found = _tune(open_model(common, model, formats, needs="trace"), batch) if tuned else None
        loaded = open_model(common, model, formats, needs="trace")
        what = kind_of(loaded).jobs(loaded, tokens, batch).what
        limit = f" of {tokens} tokens" if tokens else ""
        show.note(f"warming up {model} on {loaded.target} for every {what} size{limit}")
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
    """Measure with a token and a chunk of a prompt, or what such a model runs; nothing is read."""
    from ptir.capture.plan import PLANS, plan_for
    from ptir.runtime.kinds import kind_of

    tuning = model.target.backend.tuning(model.target.device)
    if tuning is None:
        raise UsageError(f"--tune: {model.target} has no sizes to choose; leave it out")
    show.note(f"measuring kernels on {model.target}")
    with model.policies(), tuning as outcome:
        for captured in kind_of(model).largest(model, batch):
            plan_for(captured.program, model.target)
    PLANS.clear()
    facts: dict[str, Any] = outcome.facts()
    sizes = ", ".join(f"{name} {value}" for name, value in facts["tiles"].items())
    show.note(f"{facts['kernels']} kernels, {facts['speedup']:.2f} times as fast with {sizes}")
    return facts
