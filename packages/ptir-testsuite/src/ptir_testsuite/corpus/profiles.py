"""Which profiles a backend claims, as text, and the dtypes of a case."""

from __future__ import annotations

from collections.abc import Iterable

from ptir.errors import UsageError, unknown_name
from ptir.ops.profiles import PROFILES, profiles_of, profiles_of_dtypes
from ptir.types import DTYPES, DType

__all__ = ["PROFILES", "names_of", "parse_claims", "profiles_of", "profiles_of_dtypes"]


def parse_claims(text: str) -> frozenset[str]:
    """Profiles written as ``core,f16`` or ``all``; raises ``UsageError`` for an unknown one."""
    if text == "all":
        return frozenset(PROFILES)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PROFILES:
            raise UsageError(unknown_name("profile", name, (*PROFILES, "all")))
    if not names:
        raise UsageError(f"no profile claimed; known: {', '.join(PROFILES)}, all")
    return frozenset(names)


def names_of(names: Iterable[str]) -> list[DType]:
    """The dtypes called so."""
    return [DTYPES[name] for name in names]
