"""Parameters: their identities and the sources that hand out their values."""

from ptir.params.ids import BaseParamId, NamespaceId, ParamKey, derived
from ptir.params.source import (
    ArraySource,
    Counters,
    ParamSource,
    RandomSource,
    RenamedSource,
)

__all__ = [
    "ArraySource",
    "BaseParamId",
    "Counters",
    "NamespaceId",
    "ParamKey",
    "ParamSource",
    "RandomSource",
    "RenamedSource",
    "derived",
]
