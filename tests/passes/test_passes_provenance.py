"""No pass forgets where instructions come from: every stage of the pipeline on captured models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import ptir
from devices import device
from ptir import events
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture.plan import compile_plan
from ptir.capture.tensor import Tensor
from ptir.codegen.expressions.unpacked import UNPACK
from ptir.ir.graph import freeze, source
from ptir.ir.location import UNKNOWN, Location, here
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops.overriding import active_overrides
from ptir.ops.record import OPS
from ptir.partition import partition
from ptir.partition.costs import SERVER
from ptir.passes import PassContext
from ptir.passes.cse import cse
from ptir.passes.pipeline import PIPELINE, Stage, optimize
from ptir.passes.select import select
from ptir.rewrite.engine import rewrite
from ptir.rewrite.rules import rules
from ptir.runtime.recorded import recorded_step
from ptir.types import spec
from running import model

X = spec("f32", 4)
MODELS = ("random:gpt2-tiny", "random:llama-tiny")
BACKENDS = ("paper", "ref", "c")
"""One takes no composite, one takes several whole, one wants parameters in a form of its own."""
Change = Callable[[Instruction], Instruction]


def instructions(block: Block) -> Iterator[Instruction]:
    """Those of the block and of its control flow; lowerings stand where they are called."""
    for one in block.instructions:
        yield one
        for region in () if one.op == "composite" else one.regions:
            yield from instructions(region)


def functionals(program: Program) -> dict[str, set[str]]:
    """By scope, the functionals that stand there; "" where something stems from none."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for one in instructions(program.main):
        found[one.location.scope].add(one.location.functional)
    return found


def lost(captured: Program, after: Program) -> list[str]:
    """What ``after`` no longer knows of where the instructions of ``captured`` come from."""
    found: list[str] = []
    lines = {one.location[:2] for one in instructions(captured.main)}
    was, now = functionals(captured), functionals(after)
    for one in instructions(after.main):
        place = one.location
        if one.name == UNPACK and place == UNKNOWN:  # of a parameter, which nobody computed
            continue
        called = {
            name for scope, names in was.items() if _holds(place.scope, scope) for name in names
        }
        if place[:2] not in lines:
            found.append(f"{one.name} knows no line")
        if place.functional not in called:
            found.append(f"{one.name} is of {place.functional!r}, not called in {place.scope!r}")
        if not _holds(place.layer, place.scope):
            found.append(f"{one.name} is of another layer than {place.scope}")
    for scope, names in was.items():
        found += [f"{name or 'plain'} of {scope!r} is gone" for name in names - now[scope]]
    return found


def _holds(outer: str, inner: str) -> bool:
    return not outer or f"{inner}.".startswith(f"{outer}.")


def step(spec: str, on: str, context: PassContext) -> tuple[Program, PassContext]:
    """The captured step of a model, and the context of its passes on a backend."""
    program = recorded_step(model(spec), 1, 3, 16).program
    if on == "paper":
        return program, context
    target = device(on)
    return program, PassContext(target.backend, target.device)


def walked(
    program: Program, context: PassContext, pipeline: tuple[Stage, ...] = PIPELINE
) -> list[events.PassRun]:
    """Every run of a pass."""
    runs: list[events.PassRun] = []
    remove = events.subscribe(lambda e: runs.append(e) if isinstance(e, events.PassRun) else None)
    try:
        optimize(program, context, pipeline)
    finally:
        remove()
    return runs


@pytest.mark.parametrize("on", BACKENDS)
@pytest.mark.parametrize("spec", MODELS)
def test_every_pass_keeps_where_instructions_come_from(
    spec: str, on: str, context: PassContext
) -> None:
    program, context = step(spec, on, context)
    runs = walked(program, context)
    assert [run.name for run in runs] == [
        name for stage in PIPELINE for name, _ in stage.passes(context)
    ]
    assert {run.name: lost(program, run.after) for run in runs} == {run.name: [] for run in runs}


def everywhere(change: Change) -> Stage:
    """A pass that changes every instruction."""
    return Stage(
        "forgetful",
        lambda program, context: replace(
            program,
            main=replace(program.main, instructions=tuple(map(change, program.main.instructions))),
        ),
    )


def without(*fields: str) -> Change:
    """Forgets fields of the location."""
    nothing = {name: getattr(UNKNOWN, name) for name in fields}
    return lambda one: replace(one, location=one.location._replace(**nothing))


def misplaced(one: Instruction) -> Instruction:
    """What stands in the first layer is said to be of the second."""
    place = one.location
    moved = place._replace(scope=place.scope.replace("h.0", "h.1"))
    return replace(one, location=moved)


FORGETFUL = {
    "everything": (without(*Location._fields), "knows no line"),
    "lines": (without("line"), "knows no line"),
    "files": (without("file"), "knows no line"),
    "scopes": (without("scope"), "linear of 'h.0.attn.c_attn' is gone"),
    "functionals": (without("functional"), "linear of 'h.0.attn.c_attn' is gone"),
    "layers": (misplaced, "is of another layer than h.1.attn.c_attn"),
    "one op": (
        lambda one: without("functional")(one) if one.op == "rsqrt" else one,
        "rsqrt is of '', not called in 'h.0.ln_1'",
    ),
}


@pytest.mark.parametrize("what", FORGETFUL)
@pytest.mark.parametrize("behind", range(len(PIPELINE)))
def test_a_pass_that_forgets_is_found(what: str, behind: int, context: PassContext) -> None:
    program, context = step("random:gpt2-tiny", "paper", context)
    change, said = FORGETFUL[what]
    stages = (*PIPELINE[: behind + 1], everywhere(change), *PIPELINE[behind + 1 :])
    runs = {run.name: run for run in walked(program, context, stages)}
    found = lost(program, runs["forgetful"].after)
    legal = behind >= [stage.name for stage in PIPELINE].index("legalize")
    assert any(said in line for line in found) == (legal or what != "one op")


def test_the_chosen_implementation_is_known_of_what_it_was_inlined_to(
    context: PassContext,
) -> None:
    program = ptir.capture(lambda x: F.exp(F.softmax(x) + 1.0), spec("f32", 2, 4))
    with ptir.overrides(softmax="force=online"):
        after = optimize(program, replace(context, overrides=active_overrides()))
    found = {(i.location.functional, i.location.implementation) for i in after.main.instructions}
    assert found == {("softmax", "online"), ("", "")}
    (call,) = (i for i in select(program, context).main.instructions if i.op == "composite")
    assert (call.location.functional, call.location.implementation) == ("softmax", "portable")


# --- single passes ---


def at(line: int, scope: str = "", layer: str = "") -> Location:
    return Location("model.py", line, 0, scope, layer)


def placed(block: Block, *places: Location) -> Block:
    """The block with a location for each instruction."""
    pairs = zip(block.instructions, places, strict=True)
    return replace(block, instructions=tuple(replace(i, location=place) for i, place in pairs))


def lines(block: Block) -> list[tuple[str, int]]:
    return [(one.op, one.location.line) for one in block.instructions]


def test_what_a_rule_makes_stands_where_the_root_of_its_pattern_did() -> None:
    x = source(X)
    block = freeze([OPS["neg"](OPS["neg"](OPS["sub"](x, x)))], [x])
    deep = freeze([OPS["cast"](OPS["cast"](x, dtype=ptir.types.F64), dtype=ptir.types.F32)], [x])
    assert lines(rewrite(placed(block, at(1), at(2), at(3)), rules(), {})) == [("sub", 1)]
    assert len(rewrite(deep, rules(), {}).instructions) == 0
    scaled = freeze([OPS["reshape"](OPS["reshape"](x, shape=(2, 2)), shape=(1, 4))], [x])
    assert lines(rewrite(placed(scaled, at(1), at(2)), rules(), {})) == [("reshape", 2)]


def test_equal_regions_of_different_places_stay_where_they_were() -> None:
    """A rewriter that knows blocks by equality takes the second for the first."""
    x, flag = source(X), source(spec("bool"))
    inner = source(X)
    other = freeze([OPS["abs"](inner)], [inner])
    region = freeze([OPS["exp"](OPS["neg"](OPS["neg"](inner)))], [inner])
    calls = [
        OPS["cond"].multi(flag, x, regions=(placed(region, *[at(line)] * 3), other))[0]
        for line in (1, 2)
    ]
    block = rewrite(freeze(calls, [flag, x]), rules(), {})
    assert [lines(i.regions[0]) for i in block.instructions] == [[("exp", 1)], [("exp", 2)]]


def test_what_is_shared_by_two_layers_belongs_to_neither(context: PassContext) -> None:
    x = source(X)
    block = freeze([OPS["add"](OPS["exp"](x), OPS["neg"](OPS["exp"](x)))], [x])
    first, second = at(1, "h.0.attn", "h.0"), at(2, "h.1.attn", "h.1")
    program = Program(placed(block, first, second, second, second), (Port("x"),))
    shared, neg, add = cse(program, context).main.instructions
    assert (shared.op, shared.location) == ("exp", at(1))
    assert (neg.location, add.location) == (second, second)


def test_a_decomposition_stands_where_the_op_did_and_its_regions_too(
    context: PassContext, backend: object
) -> None:
    backend.refuses = lambda query: f"no {query.op}" if query.op in ("clamp", "scan") else None  # type: ignore[attr-defined]
    carry, row = source(X), source(X)
    body = freeze([OPS["clamp"](row, carry, row)], [carry, row])
    rows = source(spec("f32", 3, 4))
    start = source(X)
    results = OPS["scan"].multi(
        start, rows, regions=(placed(body, at(7)),), carries=1, length=3, reverse=False
    )
    block = placed(freeze(list(results), [start, rows]), at(3))
    after = optimize(Program(block, (Port("a"), Port("b"))), context).main
    found = {(i.op, i.location.line) for i in instructions(after)}
    assert {line for _, line in found} == {3, 7}
    assert {op for op, line in found if line == 7} == {"maximum", "minimum"}


def test_a_program_of_unknown_places_is_given_none(context: PassContext, backend: object) -> None:
    """Not that of whoever runs the passes."""
    backend.refuses = lambda query: "no clamp" if query.op == "clamp" else None  # type: ignore[attr-defined]
    inputs = [source(X) for _ in range(3)]
    block = placed(freeze([OPS["clamp"](*inputs)], inputs), UNKNOWN)
    after = optimize(Program(block, tuple(map(Port, "abc"))), context).main
    assert [(i.op, i.location) for i in after.instructions] == [
        ("maximum", UNKNOWN),
        ("minimum", UNKNOWN),
    ]


@pytest.mark.parametrize("spec", MODELS)
def test_derived_parameters_come_from_the_model_or_from_nowhere(
    spec: str, context: PassContext
) -> None:
    """What packs a weight was written by nobody, least of all by whoever runs the passes."""
    program, context = step(spec, "c", context)
    optimize(program, context)
    lines = {one.location[:2] for one in instructions(program.main)}
    made = [i for one in context.derived.values() for i in one.block.instructions]
    assert {i.op for i in made} > {"reshape", "transpose"}
    assert {i.location[:2] for i in made} - lines == {UNKNOWN[:2]}


def test_what_a_backend_records_while_it_compiles_comes_from_nowhere(
    context: PassContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Location] = []
    kind = type(context.backend)
    compile = kind.compile

    def recording(self: object, *given: object) -> object:
        found.append(here())
        return compile(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "compile", recording)
    program = ptir.capture(lambda x: x + 1.0, X)
    compile_plan(program, Target(context.backend, context.device), Options(), active_overrides())
    assert found == [UNKNOWN]


@pytest.mark.parametrize("spec", MODELS)
def test_shares_of_workers_know_where_they_come_from(spec: str, context: PassContext) -> None:
    program, context = step(spec, "ref", context)
    optimized = optimize(program, context, PIPELINE[:-1])
    shared = partition(optimized, 2, SERVER)
    assert len(shared.phases) > 4
    was = functionals(optimized)
    for phase in shared.phases:
        for local in phase.workers:
            for one in instructions(local.program.main):
                assert one.location.line, one.name
                assert one.location.functional in was[one.location.scope], one.name


def test_a_model_s_functionals_are_told_from_what_stands_between_them(
    context: PassContext,
) -> None:
    def body(x: Tensor) -> Tensor:
        return F.softmax(x) * 2.0

    after = optimize(ptir.capture(body, spec("f32", 2, 4)), context).main
    found = {i.op for i in after.instructions if not i.location.functional}
    assert found == {"constant", "broadcast_to", "mul"}
