"""A program's plan with the handles of its parameters, wherever these are."""

from __future__ import annotations

from collections.abc import Mapping

from ptir.backend.contract import Handle, Options, Target
from ptir.capture.plan import Parameter, Plan, checks_indices, plan_for
from ptir.ir.program import Program


def bound_plan(
    program: Program,
    parameters: Mapping[str, Parameter],
    target: Target,
    options: Options | None = None,
    name: str = "",
) -> tuple[Plan, tuple[Handle, ...]]:
    """``plan_for``, and the handles of its parameters; none where these come and go by themselves.

    ``parameters`` are what the program's parameter ports stand for.
    """
    streams = {p.store.streamed for p in parameters.values()} - {None}
    if not streams:
        plan = plan_for(program, target, options, name)
        return plan, plan.bind(parameters)
    from ptir.capture.streamed import bound_streamed_plan  # most models run without a budget

    (stream,) = streams
    assert stream is not None
    asked = options or Options(check_indices=checks_indices())
    return bound_streamed_plan(program, parameters, target, asked, name, stream)
