"""**Table** of what goes wrong with the Hugging Face hub: what each error means, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from ptir.runtime.specs import HubId

LOGIN: Final = "log in with `hf auth login`, or set HF_TOKEN"
NO_NETWORK: Final = (
    "check the network (behind a proxy set HTTPS_PROXY, for a mirror of the hub HF_ENDPOINT); a"
    " model that was copied here is given by its path"
)


@dataclass(frozen=True)
class Meaning:
    """What an error of the library stands for; ``said`` gets what was asked for and the error."""

    error: str
    said: Callable[[HubId, str], str]


def _gated(asked: HubId, error: str) -> str:
    page = f"https://huggingface.co/{asked.repository}"
    return f"is gated: accept its terms at {page} and {LOGIN}"


def _no_revision(asked: HubId, error: str) -> str:
    return f"has no revision {asked.revision!r}; give a branch, a tag or a commit of it"


MEANINGS: Final = (  # an error is what the first row says whose class it is of
    Meaning("GatedRepoError", _gated),
    Meaning(
        "RepositoryNotFoundError",
        lambda asked, error: f"no such repository, or a private one; check the name, or {LOGIN}",
    ),
    Meaning("RevisionNotFoundError", _no_revision),
    Meaning(
        "DisabledRepoError", lambda asked, error: "was disabled on the hub; choose another model"
    ),
    Meaning(
        "OfflineModeIsEnabled",
        lambda asked, error: "is not on this machine, and HF_HUB_OFFLINE is set; unset it to fetch",
    ),
    Meaning(
        "HFValidationError",
        lambda asked, error: f"is no name of the hub ({error}); write OWNER/NAME",
    ),
    Meaning(
        "HfHubHTTPError",
        lambda asked, error: f"the hub answered: {error}; try again later, or {LOGIN}",
    ),
)
ELSE: Final = f"{{error}}; {NO_NETWORK}"
"""What any other error of a connection is told as."""


def failures() -> tuple[type[Exception], ...]:
    """Classes of errors that fetching ends with.

    That there is no connection is an error of the library beneath, as an answer of refusal is.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    found = (OSError, ValueError, HFValidationError, *HfHubHTTPError.__bases__)
    return cast("tuple[type[Exception], ...]", found)


def meaning(asked: HubId, error: Exception) -> str:
    """What an error means for what was asked for, and the next step."""
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    for row, kind in _classes():
        if isinstance(error, kind):
            return f"{asked.repository}: {row.said(asked, first)}"
    return f"{asked.repository} could not be fetched: {ELSE.format(error=first)}"


def _classes() -> Iterator[tuple[Meaning, type[Exception]]]:
    from huggingface_hub import errors

    for row in MEANINGS:
        yield row, getattr(errors, row.error)
