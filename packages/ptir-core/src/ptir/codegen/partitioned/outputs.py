"""The last phase of a partitioned program: outputs that workers did not leave as they are wanted.

Parts of an output that lie one behind the other are written there by those who make them. Others
are brought together by the first worker when everything else is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptir.codegen.partitioned.program import BoundProgram
from ptir.codegen.partitioned.shard_views import NotPartitioned
from ptir.ir.graph import Ref, freeze, source
from ptir.partition.phases import Partition, PhaseOutput, ProgramOutput
from ptir.sharding.local import full_value
from ptir.sharding.placement import REPLICATED, Split
from ptir.types import TensorType

MOST = 1 << 20
"""Bytes above which an output is not brought together by one worker."""


def with_gathered_outputs(
    shared: Partition, programs: Sequence[Sequence[BoundProgram]]
) -> tuple[list[list[BoundProgram]], list[ProgramOutput]]:
    """All phases, with one more where it is needed, and where the outputs are then."""
    phases, outputs = [list(phase) for phase in programs], list[ProgramOutput]()
    seen, inputs, results = set[PhaseOutput](), list[tuple[PhaseOutput, Ref]](), list[Ref]()
    for value, output in zip(shared.program.main.outputs, shared.outputs, strict=True):
        if follow_one_another(shared, output) and not seen & set(output.parts):
            outputs.append(output)
            seen |= set(output.parts)
            continue
        type = shared.program.main.types[value]
        if type.nbytes > MOST:
            raise NotPartitioned("the parts of a large output do not lie one behind the other")
        parts = [source(type_of(shared, left)) for left in output.parts]
        inputs += zip(output.parts, parts, strict=True)
        whole = full_value(parts, output.placement, type) if len(parts) > 1 else parts[0]
        outputs.append(
            ProgramOutput(REPLICATED, (PhaseOutput(len(programs), 0, len(results), value),))
        )
        results.append(whole)
    if results:
        block = freeze(results, [ref for _, ref in inputs])
        last = BoundProgram(block, tuple((left,) for left, _ in inputs), frozenset())
        nothing = BoundProgram(freeze([], []), (), frozenset())
        phases.append([last, *[nothing] * (shared.workers - 1)])
    return phases, outputs


def follow_one_another(shared: Partition, output: ProgramOutput) -> bool:
    """Whether the parts of an output lie one behind the other in it."""
    placement, begin = output.placement, 0
    if not isinstance(placement, Split):
        return True
    for worker, left in enumerate(output.parts):
        ranges = placement.parts[worker]
        outer = type_of(shared, left).shape[: placement.axis]
        if len(ranges) != 1 or ranges[0][0] != begin or any(size != 1 for size in outer):
            return False
        begin = ranges[0][1]
    return True


def type_of(shared: Partition, left: PhaseOutput) -> TensorType:
    """The type of what a worker left."""
    return shared.phases[left.phase].workers[left.worker].program.outputs[left.output]
