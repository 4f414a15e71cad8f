"""What the tests of sharing have in common: costs, targets, and models that are never run."""

from __future__ import annotations

from typing import Any

import ptir_backend_ref
from ptir.backend.contract import Backend, Target
from ptir.capture.plan import Plan, plan_for
from ptir.ir.program import Port, Program
from ptir.partition import Costs, Partition, PartitionedBackend, partition
from ptir.passes.context import PassContext
from ptir.passes.pipeline import PIPELINE, optimize
from ptir.runtime.workers import decode_program
from running import model

REF = Target(ptir_backend_ref.backend, ptir_backend_ref.backend.devices()[0])

EAGER = Costs(
    bytes_per_second=1e9,
    products_per_second=1e9,
    elements_per_second=1e6,
    barrier_seconds=1e-9,
    communication_bytes_per_second=1e9,
    cache_bytes=0,
    grain=1,
)
"""All work is slow and barriers cost nothing: whatever can be shared is."""

CORES = Costs(
    bytes_per_second=2e10,
    products_per_second=5e10,
    elements_per_second=1e10,
    barrier_seconds=2e-6,
    communication_bytes_per_second=2e10,
)
"""Cores of one processor."""


def shared(workers: int, costs: Costs = EAGER, backend: Backend = REF.backend) -> Target:
    """The reference backend, or another, run by so many workers."""
    return Target(PartitionedBackend(backend, workers, costs), backend.devices()[0])


def partition_of(program: Program, target: Target) -> Partition:
    """How a target with workers has shared a captured program."""
    return plan_partition(partition_plan(program, target))


def partition_plan(program: Program, target: Target) -> Plan:
    """The plan of a captured program on a target, as ``run_program`` makes it."""
    return plan_for(Program(program.main, tuple(Port(port.name) for port in program.ports)), target)


def plan_partition(plan: Plan) -> Partition:
    """How a plan is shared."""
    found: Any = plan.executable
    assert isinstance(found.partition, Partition)
    return found.partition


def decode_partition(
    spec: str, workers: int, costs: Costs = CORES, dtype: str = "f32"
) -> Partition:
    """A decode step of a model with random weights, which are never read, shared."""
    loaded = model(spec, dtype)
    context = PassContext(REF.backend, REF.device)
    program = optimize(decode_program(loaded, 64), context, PIPELINE[:-1])
    return partition(program, workers, costs)
