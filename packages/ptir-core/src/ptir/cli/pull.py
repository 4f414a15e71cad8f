"""``ptir pull``: fetch a model from the Hugging Face hub into the local cache."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ptir import units
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, showing_only
from ptir.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from ptir.runtime.specs import HubId

FILES: Final = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt")
PATIENCE: Final = 10.0
"""Seconds that the hub may take to answer what a repository holds."""


@showing_only("json")
@click.command()
@click.argument("hub_id")
@click.option("--revision", help="A branch, tag or commit.")
@common_options
def command(common: CommonOptions, hub_id: str, revision: str | None) -> None:
    """Fetch OWNER/NAME, never its pickles, or one GGUF file of it: OWNER/NAME:Q4_K_M.

    The address of its page, or of a file's page, is taken too. Prints the path of what was fetched.
    """
    from ptir.cli.hub_errors import failures, meaning
    from ptir.runtime.specs import split_hub_id

    asked = split_hub_id(hub_id)
    if asked is None:
        raise UsageError(
            f"{hub_id!r} is not a hub id; write OWNER/NAME or OWNER/NAME:Q4_K_M, or the address of"
            " its page"
        )
    asked = asked._replace(revision=revision or asked.revision)
    try:
        path = fetched(asked)
    except failures() as error:
        raise CheckpointError(meaning(asked, error)) from error
    if common.json:
        show.value({"model": hub_id, "path": path})
    else:
        show.text(path)


def fetched(asked: HubId) -> str:
    """Where what was asked for lies once it is fetched: a folder, or the first part of a file.

    Without a connection it is what an earlier run fetched, if that is there.
    """
    from ptir.cli.hub_errors import failures

    try:
        sizes = _files(asked)
    except failures() as error:
        kept = _kept(asked) if not hasattr(error, "response") else None
        if kept is None:
            raise
        show.note(f"not fetched again ({next(iter(str(error).splitlines()), '')}): it is here")
        return kept
    files = _wanted(asked, sizes)
    folder = _downloaded(asked, [glob.escape(name) for name in files] or list(FILES))
    return str(Path(folder) / files[0]) if files else folder


def _files(asked: HubId) -> dict[str, int | None]:
    """The files of a repository and their bytes, by one question that is not asked again."""
    from huggingface_hub import model_info

    found = model_info(
        asked.repository, revision=asked.revision or None, timeout=PATIENCE, files_metadata=True
    )
    return {one.rfilename: one.size for one in found.siblings or ()}


def _wanted(asked: HubId, sizes: Mapping[str, int | None]) -> tuple[str, ...]:
    """The files of the GGUF model that is meant; none where the whole repository is.

    Raises ``CheckpointError`` where it is not to be told which, with what there is.
    """
    from ptir.checkpoint.folder import CONFIG
    from ptir.stores import choose
    from ptir.stores.files import grouped

    if asked.pattern:
        return choose(asked.repository, sizes, asked.pattern).files
    if CONFIG in sizes and any(name.endswith(".safetensors") for name in sizes):
        return ()
    models = [one for one in grouped(sizes) if not one.companion]
    if len(models) == 1:
        return models[0].files
    if models:
        there = ", ".join(_told(one.variant, [sizes[name] for name in one.files]) for one in models)
        raise CheckpointError(
            f"{asked.repository} has GGUF files: {there}; fetch one of them with `ptir pull"
            f" {asked.repository}:{models[0].variant}`"
        )
    if pickles := [name for name in sizes if name.lower().endswith(PICKLES)]:
        raise CheckpointError(
            f"{asked.repository} has its weights as pickles alone ({pickles[0]}), which can run"
            " code when loaded and are never fetched; look for the model as safetensors or GGUF"
        )
    raise CheckpointError(
        f"{asked.repository} has neither {CONFIG} with .safetensors files nor GGUF files, so it is"
        " no model that ptir reads; choose another repository"
    )


def _told(variant: str, sizes: list[int | None]) -> str:
    """A choice, with the size of its files where that is known."""
    known = [one for one in sizes if one is not None]
    return f"{variant} ({units.size(sum(known))})" if known else variant


def _kept(asked: HubId) -> str | None:
    """What was fetched earlier of what is asked for; None where that is not there."""
    from ptir.stores import found_models, named
    from ptir.stores.hub import NAME

    if asked.revision:  # a store knows one revision, and not which
        return None
    try:
        found = named(str(asked), [one for one in found_models() if one.store == NAME])
    except UsageError:  # it means several, or none of a repository that is there
        return None
    return None if found is None or found.problem else str(found.path)


def _downloaded(asked: HubId, patterns: list[str]) -> str:
    """The folder of a repository's snapshot with the files that ``patterns`` mean."""
    from huggingface_hub import snapshot_download

    revision = asked.revision or None
    return snapshot_download(asked.repository, revision=revision, allow_patterns=patterns)
