"""``ptir forward``: logits of a text or of token ids, described or written to an archive."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import click

from ptir.cli import show
from ptir.cli.model import dtype_option, model_argument, open_model, prompt_text
from ptir.cli.shared import Shared, session, shared_options


@click.command()
@model_argument
@click.argument("prompt", required=False)
@click.option("-p", "--prompt", "prompt_option", metavar="TEXT", help="The text; - reads stdin.")
@click.option("--tokens", metavar="IDS", help="Token ids, comma-separated, instead of a text.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write an archive.")
@dtype_option
@shared_options
def command(
    shared: Shared,
    model: str,
    prompt: str | None,
    prompt_option: str | None,
    tokens: str | None,
    out: Path | None,
    dtype: str,
) -> None:
    """Compute the logits of every position of a text with MODEL."""
    from ptir.checkpoint import save_archive

    if tokens is not None and (prompt is not None or prompt_option is not None):
        raise click.UsageError("give the input once: a text or --tokens")
    given = _ids(tokens) if tokens is not None else prompt_text(prompt, prompt_option)
    with session(shared):
        loaded = open_model(shared, model, dtype)
        ids = loaded.encode(given)
        outputs = {"logits": loaded.forward(ids)}
    if out is not None:
        save_archive(out, outputs, {"model": model, "token_ids": ",".join(map(str, ids))})
    rows = {name: described(array) for name, array in outputs.items()}
    if shared.json:
        show.value({"outputs": rows, "token_ids": ids})
        return
    table = [(name, r["dtype"], r["shape"], r["digest"]) for name, r in rows.items()]
    show.table(("output", "dtype", "shape", "digest"), table)


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--tokens {text!r}: integers separated by commas") from error


def described(array: Any) -> dict[str, Any]:
    """An output as ``--json`` prints it: shape, dtype and a digest of its bytes."""
    digest = hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()
    return {"shape": list(array.shape), "dtype": str(array.dtype), "digest": digest}
