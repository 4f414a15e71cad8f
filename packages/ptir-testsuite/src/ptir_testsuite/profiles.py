"""Which profiles a call belongs to, and which a backend claims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ptir.errors import UsageError, unknown_name
from ptir.ops.record import Op
from ptir.types import DTYPES, DType

DTYPE_PROFILES: Final = {
    "f16": "f16",
    "bf16": "bf16",
    "f64": "f64",
    **dict.fromkeys(("i8", "u8", "i16", "u16"), "int8"),
    **dict.fromkeys(("i64", "u64"), "int64"),
    **dict.fromkeys(("f8e4m3fn", "f8e5m2"), "f8"),
}
OP_PROFILES: Final = ("core", "rng", "sort", "control-flow", "quantized", "extension")
PROFILES: Final = (*OP_PROFILES, *dict.fromkeys(DTYPE_PROFILES.values()))


def profiles_of(op: Op, dtypes: Iterable[DType]) -> frozenset[str]:
    """The profiles of a call whose operands and results have these dtypes."""
    extra = {DTYPE_PROFILES[d.name] for d in dtypes if d.name in DTYPE_PROFILES}
    return frozenset({op.profile, *extra})


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
