"""``ptir eval``'s comparisons: outputs and layers beside a peer's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from ptir.cli.compared import as_json
from ptir.cli.eval_options import Asked, inputs_of
from ptir.cli.eval_tables import Cell, Column, Result, about, facts_of
from ptir.errors import UsageError

if TYPE_CHECKING:
    from ptir.peers.subject import Pair
    from ptir.peers.workloads import OutputRow
    from ptir.runtime import Model

OFF: Final = (
    Column("differing"),
    Column("max abs", ".3g"),
    Column("relative", ".2g"),
    Column("ulps", ".3g"),
)


def validate_result(model: Model, pair: Pair | None, asked: Asked) -> Result:
    """Whether outputs, and greedy tokens, are the peer's."""
    from ptir.debug import Tolerance
    from ptir.peers.workloads import validate

    assert pair is not None  # the workload compares
    inputs = inputs_of(model, asked)
    found = [*validate(pair, inputs, Tolerance(asked.tolerance), asked.n_gen)]
    greedy = any(row.greedy is not None for row in found)
    columns = [Column("input"), *OFF]
    columns += [Column("best agree")] if found[0].best is not None else []
    columns += [Column("tokens agree")] if greedy else []
    rows = [_output_cells(row, greedy) for row in found]
    wrong = [row for row in found if not row.right]
    close = [row for row in found if row.right and row.greedy and row.greedy.ahead is not None]
    summary = [
        f"{row.name}: token {row.greedy.same} differs, where the peer's best was ahead of its"
        f" second by {row.greedy.ahead:.1g} of the largest logit: a close call"
        for row in close
        if row.greedy is not None and row.greedy.ahead is not None
    ]
    right = f"{len(found) - len(wrong)} of {len(found)} outputs are right"
    return Result(
        title=f"{asked.model}: outputs beside {asked.against}",
        columns=[*columns, Column("")],
        rows=rows,
        value={
            **about(model, pair, asked),
            "right": not wrong,
            "outputs": [_output_json(row) for row in found],
        },
        facts=[*facts_of(model, pair, asked), ("outputs", right)],
        summary=summary,
        wrong=_wrong_output(wrong[0], asked) if wrong else None,
    )


def _output_cells(row: OutputRow, greedy: bool) -> list[Cell]:
    one = row.found
    cells: list[Cell] = [row.name, f"{one.differing} of {one.elements}", row.distance]
    cells += [one.relative, one.ulps]
    cells += [f"{row.best} of {row.rows}"] if row.best is not None else []
    if greedy:
        made = row.greedy
        cells.append("" if made is None else f"{made.same} of {len(made.ours)}")
    return [*cells, "right" if row.right else "wrong"]


def _output_json(row: OutputRow) -> dict[str, Any]:
    found = {
        "name": row.name,
        "right": row.right,
        **as_json(row.found),
        "max_abs": row.distance,
        "best_agree": row.best,
        "best_of": row.rows,
    }
    return found if row.greedy is None else {**found, "greedy": asdict(row.greedy)}


def _wrong_output(row: OutputRow, asked: Asked) -> str:
    trace = f"`ptir eval {asked.model} --workload trace --against {asked.against}`"
    if row.greedy is not None and row.greedy.ahead is not None:
        return (
            f"{row.name}: token {row.greedy.same} differs from {asked.against}'s, and the output"
            f" is off by {row.found.relative:.2g} of the largest; {trace} finds the layer"
        )
    return (
        f"{row.name}: the output is off by {row.found.relative:.2g} of the largest, by"
        f" {asked.against}; {trace} finds the layer"
    )


def trace_result(model: Model, pair: Pair | None, asked: Asked) -> Result:
    """Whether every layer gives what the peer's does, and which is the first that does not."""
    from ptir.debug import Tolerance
    from ptir.peers.workloads import trace

    assert pair is not None  # the workload compares
    inputs = inputs_of(model, asked)
    if len(inputs) > 1:
        raise UsageError(f"trace looks at one input, and there are {len(inputs)}; give one")
    found = trace(pair, inputs[0], Tolerance(asked.tolerance))
    first = found.first_wrong
    rows: list[list[Cell]] = [
        [
            row.name,
            together(row.theirs),
            f"{row.found.differing} of {row.found.elements}",
            abs(row.found.got - row.found.wanted),
            row.found.relative,
            row.found.ulps,
            "right" if row.right else "wrong",
        ]
        for row in found.rows
    ]
    alone = f"{len(found.rows)} of {len(found.rows) + len(found.alone)} layers are compared"
    if found.alone:
        alone += f"; the peer has no such module for {_some(found.alone)}"
    layers = [
        {"name": r.name, "theirs": r.theirs, "right": r.right, **as_json(r.found)}
        for r in found.rows
    ]
    return Result(
        title=f"{asked.model}: layers beside {asked.against}",
        columns=[Column("layer"), Column(f"in {asked.against}"), *OFF, Column("")],
        rows=rows,
        value={
            **about(model, pair, asked),
            "input": inputs[0].name,
            "right": first is None,
            "first_wrong": first.name if first else None,
            "layers": layers,
            "not_compared": [*found.alone],
        },
        facts=[*facts_of(model, pair, asked), ("first wrong", first.name if first else "none")],
        summary=[alone],
        wrong=None
        if first is None
        else f"{model.target} is wrong in {first.name}: {first.found.relative:.2g} of the largest,"
        f" by {asked.against}'s {together(first.theirs)}",
    )


def together(modules: Sequence[str]) -> str:
    """The names of modules side by side: ``layers.0.attention.{q,k,v}``."""
    if len(modules) < 2:
        return modules[0]
    columns = zip(*(module.split(".") for module in modules), strict=False)
    shared = [*takewhile(lambda parts: len({*parts}) == 1, columns)]
    begin = "".join(f"{parts[0]}." for parts in shared)
    return f"{begin}{{{','.join(one.removeprefix(begin) for one in modules)}}}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
