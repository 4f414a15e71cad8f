"""``ptir pull``: fetch a model from the Hugging Face hub into the local cache."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options
from ptir.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from ptir.runtime.specs import HubId

FILES: Final = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


@click.command()
@click.argument("hub_id")
@click.option("--revision", help="A branch, tag or commit.")
@common_options
def command(common: CommonOptions, hub_id: str, revision: str | None) -> None:
    """Fetch OWNER/NAME, never its pickles, or one GGUF file of it: OWNER/NAME:Q4_K_M."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    from ptir.runtime.specs import split_hub_id

    asked = split_hub_id(hub_id)
    if asked is None:
        raise UsageError(f"{hub_id!r} is not a hub id; write OWNER/NAME or OWNER/NAME:Q4_K_M")
    try:
        path = fetched(asked, revision)
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(
            f"{hub_id!r} could not be fetched: {first}; check the name and the network"
        ) from error
    if common.json:
        show.value({"model": hub_id, "path": path})
    else:
        show.text(path)


def fetched(asked: HubId, revision: str | None) -> str:
    """Where what was asked for lies once it is fetched: a folder, or the first part of a file."""
    from huggingface_hub import list_repo_files, snapshot_download

    from ptir.stores import choose

    if not asked.pattern:
        return snapshot_download(asked.repository, revision=revision, allow_patterns=list(FILES))
    names = list_repo_files(asked.repository, revision=revision)
    files = choose(asked.repository, names, asked.pattern).files
    exact = [glob.escape(name) for name in files]
    folder = snapshot_download(asked.repository, revision=revision, allow_patterns=exact)
    return str(Path(folder) / files[0])
