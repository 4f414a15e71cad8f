"""The kernel families, in the order in which they are asked for a hero: one row each."""

from __future__ import annotations

from typing import Final

from ptir.codegen.families import (
    attention,
    attention_split_coop,
    cache,
    convolution,
    convolution_coop,
    convolution_tiles,
    dot,
    elements,
    fold,
    order,
    order_coop,
    product,
    random,
    rounding,
    rows,
    rows_coop,
    running,
    scatter,
    sorting,
)
from ptir.codegen.groups import threads
from ptir.codegen.kernel import Family

_ROWS: Final = (
    Family("attention", attention.match, attention.write, attention_split_coop.coop),
    Family("cache", cache.match, cache.write, threads(cache.write)),
    Family("convolution", convolution.match, convolution_tiles.write, convolution_coop.coop),
    Family("product", product.match, product.write, product.coop),
    Family("rounding", rounding.match, rounding.write),
    Family("dot", dot.match, dot.write, dot.coop),
    Family("random", random.match, random.write, random.coop),
    Family("rows", rows.match, rows.write, rows_coop.coop),
    Family("fold", fold.match, fold.write, threads(fold.write)),
    Family("order", order.match, sorting.write, order_coop.coop),
    Family("running", running.match, running.write, running.coop),
    Family("scatter", scatter.match, scatter.write, threads(scatter.write)),
    Family("map", elements.match, elements.write, elements.coop),
)

FAMILIES: Final[dict[str, Family]] = {family.name: family for family in _ROWS}
