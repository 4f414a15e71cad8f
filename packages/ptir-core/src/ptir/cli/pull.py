"""``ptir pull``: fetch a model from the Hugging Face hub into the local cache."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

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
    # that there is no connection is an error of the library beneath, as an answer of refusal is
    failures = (OSError, ValueError, HFValidationError, *HfHubHTTPError.__bases__)
    try:
        path = fetched(asked, revision)
    except CheckpointError:
        raise
    except cast("tuple[type[Exception], ...]", failures) as error:
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

    from ptir.checkpoint.folder import CONFIG
    from ptir.stores import choose
    from ptir.stores.files import grouped

    if not asked.pattern:
        whole = list(FILES)
        folder = snapshot_download(asked.repository, revision=revision, allow_patterns=whole)
        if Path(folder, CONFIG).exists():
            return folder
    names = list_repo_files(asked.repository, revision=revision)
    if not asked.pattern:
        there = [one.variant for one in grouped(names) if not one.companion]
        if not there:
            raise CheckpointError(f"{asked.repository} has neither {CONFIG} nor GGUF files")
        raise CheckpointError(
            f"{asked.repository} has GGUF files: {', '.join(there)}; fetch one of them with"
            f" `ptir pull {asked.repository}:{there[0]}`"
        )
    files = choose(asked.repository, names, asked.pattern).files
    exact = [glob.escape(name) for name in files]
    folder = snapshot_download(asked.repository, revision=revision, allow_patterns=exact)
    return str(Path(folder) / files[0])
