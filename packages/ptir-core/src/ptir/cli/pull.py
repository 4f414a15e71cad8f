"""``ptir pull``: fetch a model from the Hugging Face hub into the local cache."""

from __future__ import annotations

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options
from ptir.errors import CheckpointError, UsageError

FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


@click.command()
@click.argument("hub_id")
@click.option("--revision", help="A branch, tag or commit.")
@common_options
def command(common: CommonOptions, hub_id: str, revision: str | None) -> None:
    """Fetch HUB_ID (OWNER/NAME): configuration, tokenizer and safetensors, never pickles."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    from ptir.runtime.specs import looks_like_hub_id

    if not looks_like_hub_id(hub_id):
        raise UsageError(f"{hub_id!r} is not a hub id; write OWNER/NAME")
    try:
        path = snapshot_download(hub_id, revision=revision, allow_patterns=list(FILES))
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(
            f"{hub_id!r} could not be fetched: {first}; check the name and the network"
        ) from error
    if common.json:
        show.value({"model": hub_id, "path": path})
    else:
        show.text(path)
