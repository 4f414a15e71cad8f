"""The kernel families, in the order in which they are asked for a hero: one row each."""

from __future__ import annotations

from typing import Final

from ptir.codegen.families import (
    attention,
    cache,
    convolution,
    dot,
    elements,
    fold,
    order,
    product,
    random,
    rounding,
    rows,
    running,
    scatter,
)
from ptir.codegen.kernel import Family

FAMILIES: Final[dict[str, Family]] = {
    family.name: family
    for family in (
        attention.FAMILY,
        cache.FAMILY,
        convolution.FAMILY,
        product.FAMILY,
        rounding.FAMILY,
        dot.FAMILY,
        random.FAMILY,
        rows.FAMILY,
        fold.FAMILY,
        order.FAMILY,
        running.FAMILY,
        scatter.FAMILY,
        elements.FAMILY,
    )
}
