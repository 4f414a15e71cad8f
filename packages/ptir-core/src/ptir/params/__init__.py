"""Parameters: their identities and the sources that hand out their values."""

from ptir.params.ids import BaseParamId, NamespaceId, ParamKey, derived
from ptir.params.source import (
    ArraySource,
    BlockSource,
    Counters,
    ParamSource,
    RandomSource,
    RenamedSource,
    SizedSource,
    stored_formats,
)

__all__ = [
    "ArraySource",
    "BaseParamId",
    "BlockSource",
    "Counters",
    "NamespaceId",
    "ParamKey",
    "ParamSource",
    "RandomSource",
    "RenamedSource",
    "SizedSource",
    "derived",
    "stored_formats",
]
