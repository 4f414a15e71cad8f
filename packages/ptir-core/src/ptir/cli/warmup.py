"""``ptir warmup``: build what a model's generation needs, so that later runs build nothing."""

from __future__ import annotations

from dataclasses import asdict

import click

from ptir.cli import show
from ptir.cli.model import dtype_option, model_argument, open_model, quant_option
from ptir.cli.shared import Shared, session, shared_options


@click.command()
@model_argument
@click.option(
    "-n", "--tokens", type=click.IntRange(1), help="Only runs of N tokens, prompt included."
)
@click.option(
    "--batch", type=click.IntRange(1), default=1, show_default=True, help="Prompts at once."
)
@dtype_option
@quant_option
@shared_options
def command(
    shared: Shared, model: str, tokens: int | None, batch: int, dtype: str, quant: str | None
) -> None:
    """Build and cache the kernels that generating with MODEL needs, greedy and sampled.

    Later runs on the same device, in any process, build nothing. See also `ptir cache`.
    """
    from ptir.runtime.warmup import warm_up

    with session(shared):
        loaded = open_model(shared, model, dtype, quant)
        total = f"for caches of {tokens} tokens" if tokens else "for caches of every size"
        show.note(f"warming up {model} on {loaded.target} {total}")
        done = warm_up(
            loaded, tokens, batch, lambda n, of: show.note(f"{n} of {of} cache sizes done")
        )
    if shared.json:
        where = {"backend": loaded.target.backend.name, "device": loaded.target.device.name}
        show.value({"model": model, **where, **asdict(done)})
        return
    show.text(
        f"{done.programs} programs in {done.seconds:.1f} s:"
        f" {done.kernel_files_built} kernel files built,"
        f" {done.kernel_files_restored} from the cache"
    )
