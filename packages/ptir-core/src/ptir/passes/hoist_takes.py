"""Takes are hoisted: where one row is read of what is computed row by row, only it is computed.

A prompt's logits are those of its last token, and many encoders give what they say of the first:
behind the last layer that mixes rows (keys and values of attention are of all of them), all others
are computed for nobody. XLA and MLIR hoist slices above elementwise ops; here whatever has a
sharding rule is one worker's part, the lowerings of composites included.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ptir.ir.program import Program
from ptir.passes.context import PassContext
from ptir.passes.single_reads import Graph, roots_of

COUNTED: Final = "hoist take"


def hoist_takes(program: Program, context: PassContext) -> Program:
    """``program`` in which what is computed of one row alone is computed of that row alone.

    Each take or slice that was hoisted is counted in ``context``. Sums may round as those of
    fewer rows do. Where indices are to be checked, all stays as it is.
    """
    if context.check_indices:
        return program
    main = program.main
    given = [v for v, port in enumerate(program.ports) if port.kind == "input"]
    while roots := roots_of(graph := Graph(main, given)):
        from ptir.passes.narrowing import apart, narrowed  # with all rules of sharding

        found = apart(graph, roots)
        if not found:
            break
        main = narrowed(graph, found)
        context.rewrites[COUNTED] = context.rewrites.get(COUNTED, 0) + len(found)
    return program if main is program.main else replace(program, main=main)
