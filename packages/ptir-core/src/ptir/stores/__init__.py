"""Models that programs keep on this machine, by name: a table of stores, and who a name means."""

from ptir.stores.files import Found, Group, companion, grouped, label, models_in
from ptir.stores.given import models_under
from ptir.stores.names import choose, distinct, named, typed_names, within
from ptir.stores.table import STORES, Store, found_models

__all__ = [
    "STORES",
    "Found",
    "Group",
    "Store",
    "choose",
    "companion",
    "distinct",
    "found_models",
    "grouped",
    "label",
    "models_in",
    "models_under",
    "named",
    "typed_names",
    "within",
]
