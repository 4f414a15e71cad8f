"""Models that programs keep on this machine, by name: a table of stores, and who a name means."""

from ptir.stores.files import Found, Group, companion, grouped, models_in
from ptir.stores.names import choose, named, typed_names
from ptir.stores.table import STORES, Store, found_models

__all__ = [
    "STORES",
    "Found",
    "Group",
    "Store",
    "choose",
    "companion",
    "found_models",
    "grouped",
    "models_in",
    "named",
    "typed_names",
]
