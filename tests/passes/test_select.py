"""Choosing implementations: force, then timing, then the backend's claim, then portable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import ptir
import ptir.functional
from ptir import events
from ptir.errors import PluginError, UnsupportedError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import freeze, source
from ptir.ir.program import Block, Port, Program
from ptir.ops.implementations import (
    FUNCTIONALS,
    Implementation,
    always,
    define_functional,
    register,
)
from ptir.ops.policies import Override, Policy, merged, origin
from ptir.ops.record import OPS
from ptir.ops.schedules import CONV2D_WINOGRAD
from ptir.passes import PassContext, remembered, timing
from ptir.passes.legalize import legalize
from ptir.passes.select import select
from ptir.types import TensorType, spec

F = spec("f32", 4)
SEEN: list[Attributes] = []


def unary(*names: str) -> Block:
    value = inner = source(F)
    for name in names:
        value = OPS[name](value)
    return freeze([value], [inner])


INNER = unary("neg", "exp", "neg")


def composite_block(name: str, lowering: Block, **attributes: object) -> Block:
    x = source(F)
    made = OPS["composite"].multi(x, regions=(lowering,), name=name, **attributes)
    return freeze([made[0]], [x])


def program(name: str, lowering: Block | None = None, **attributes: object) -> Program:
    if lowering is None:
        lowering = INNER if name == "inner_test" else composite_block("inner_test", INNER)
    block = composite_block(name, lowering, **attributes)
    return Program(block, (Port("x"),))


def chosen(of: Program) -> tuple[str, list[str]]:
    instruction = of.main.instructions[0]
    return str(instruction.attributes["implementation"]), ops(instruction.regions[0])


def ops(block: Block) -> list[str]:
    return [instruction.op for instruction in block.instructions]


def lower_portable(types: tuple[TensorType, ...], attributes: Attributes) -> Block:
    SEEN.append(attributes)
    return unary("neg", "exp", "neg")


@pytest.fixture(autouse=True)
def functionals() -> Iterator[None]:
    """Two functionals: ``inner``, and ``outer`` whose portable lowering uses it."""
    before = dict(FUNCTIONALS)
    SEEN.clear()
    define_functional("inner_test", "")
    define_functional("outer_test", "")
    register(Implementation("inner_test", "portable", lower_portable))
    register(Implementation("inner_test", "fast", lambda t, a: unary("tanh")))
    register(Implementation("inner_test", "never", lambda t, a: unary("sin"), supports=_odd))
    register(Implementation("inner_test", "wrong", lambda t, a: Block((F,), (), (0, 0))))
    block = composite_block("inner_test", INNER)
    register(Implementation("outer_test", "portable", lambda t, a: block))
    yield
    FUNCTIONALS.clear()
    FUNCTIONALS.update(before)


def _odd(types: tuple[TensorType, ...], attributes: Attributes) -> str | None:
    return "only odd sizes" if types[0].size % 2 == 0 else None


def claim(*names: str):
    return lambda query: None if query.name in names or not query.is_composite else "no kernel"


def force(name: str, functional: str = "inner_test", by: str = "context"):
    return (Override(functional, Policy("force", name), origin=origin(by)),)


def test_portable_is_taken_when_the_backend_does_not_claim(context: PassContext) -> None:
    after = select(program("inner_test", epsilon=0.5), context)
    assert chosen(after) == ("portable", ["neg", "exp", "neg"])
    assert set(SEEN) == {Attributes({"epsilon": 0.5})}
    assert after.main.instructions[0].attributes["epsilon"] == 0.5


def test_claimed_composite_keeps_its_lowering(context: PassContext, backend) -> None:
    backend.refuses = claim("inner_test")
    assert chosen(select(program("inner_test"), context)) == ("backend", ops(INNER))
    assert "implementation" not in backend.asked[0].attributes


def test_what_is_preferred_for_a_call_is_its_default_unless_the_backend_claims_it(
    context: PassContext, backend
) -> None:
    def fours(types: tuple[TensorType, ...], attributes: Attributes) -> str | None:
        return "four elements" if types[0].size == 4 else None

    def added(name: str, preferred, supports=always) -> None:
        lower = lambda t, a: unary("sin")  # noqa: E731
        given = {"supports": supports, "accuracy": "exact", "preferred": preferred}
        register(Implementation("inner_test", name, lower, **given))

    added("unfit", lambda t, a: "every call", supports=lambda t, a: "no call")
    added("fours", fours)
    heard: list[events.Event] = []
    remove = events.subscribe(heard.append)
    assert chosen(select(program("inner_test"), context)) == ("fours", ["sin"])
    remove()
    (told,) = (one for one in heard if isinstance(one, events.ImplementationChosen))
    assert told.reason.startswith("four elements; ")
    context.overrides = force("portable")
    assert chosen(select(program("inner_test"), context))[0] == "portable"
    context.overrides = (Override("inner_test", Policy()),)
    assert chosen(select(program("inner_test"), context))[0] == "fours"
    backend.refuses = claim("inner_test")
    assert chosen(select(program("inner_test"), context)) == ("backend", ops(INNER))


def test_a_preference_that_raises_is_named_and_passed_over(context: PassContext) -> None:
    made = {"accuracy": "exact", "preferred": lambda t, a: a["epsilon"].nothing}
    register(Implementation("inner_test", "raises", lambda t, a: unary("sin"), **made))
    with pytest.warns(RuntimeWarning, match=r"inner_test\(f32\[4\]\): .*AttributeError.*portable"):
        after = select(program("inner_test", epsilon=0.5), context)
    assert chosen(after)[0] == "portable"


def test_only_what_is_exact_may_be_preferred() -> None:
    made = Implementation("inner_test", "near", lower_portable, preferred=lambda t, a: "always")
    with pytest.raises(PluginError, match="'near' is preferred for some calls and reordered"):
        register(made)


def test_force_wins_over_the_claim(context: PassContext, backend) -> None:
    backend.refuses = claim("inner_test")
    context.overrides = force("fast")
    assert chosen(select(program("inner_test"), context)) == ("fast", ["tanh"])


def test_choice_reaches_lowerings_that_will_be_inlined(context: PassContext) -> None:
    context.overrides = force("fast")
    after = legalize(select(program("outer_test"), context), context)
    assert ops(after.main) == ["tanh"]


def test_forced_implementation_that_does_not_apply_is_an_error(context: PassContext) -> None:
    context.overrides = force("never")
    with pytest.raises(
        UnsupportedError, match=r"inner_test\(f32\[4\]\): force=never on paper .*only odd sizes"
    ):
        select(program("inner_test"), context)


def test_forced_implementation_that_raises_is_named_with_the_call(context: PassContext) -> None:
    register(Implementation("inner_test", "raises", lambda t, a: a["epsilon"].nothing))
    context.overrides = force("raises")
    words = r"inner_test\(f32\[4\]\): implementation 'raises' failed: AttributeError: 'float'"
    with pytest.raises(PluginError, match=words):
        select(program("inner_test", epsilon=0.5), context)


def test_forced_backend_that_refuses_is_an_error(context: PassContext) -> None:
    context.overrides = force("backend")
    with pytest.raises(UnsupportedError, match=r"force=backend on paper .*composites are lowered"):
        select(program("inner_test"), context)


def test_implementation_that_lowers_to_other_types_is_an_error(context: PassContext) -> None:
    context.overrides = force("wrong")
    with pytest.raises(PluginError, match=r"implementation 'wrong' lowers to \(f32\[4\]\)"):
        select(program("inner_test"), context)


def test_unknown_composite_keeps_its_own_lowering(context: PassContext, backend) -> None:
    dumped = program("theirs_test", unary("cos"))
    assert chosen(select(dumped, context)) == ("own", ["cos"])
    backend.refuses = claim("theirs_test")
    assert chosen(select(dumped, context)) == ("backend", ["cos"])


@pytest.mark.parametrize("name", ["inner_test", "outer_test"])
def test_a_lowering_that_is_not_the_functionals_own_is_all_that_counts(
    name: str, context: PassContext, backend
) -> None:
    dumped = program(name, unary("cos"))
    backend.refuses = claim("inner_test", "outer_test")
    assert chosen(select(dumped, context)) == ("own", ["cos"])
    context.overrides = force("fast")
    assert chosen(select(dumped, context)) == ("own", ["cos"])
    assert not backend.asked


def test_selected_program_can_be_selected_again(context: PassContext) -> None:
    once = select(program("inner_test"), context)
    context.overrides = force("fast")
    again = select(once, context)
    assert chosen(again) == ("fast", ["tanh"])


def test_composites_in_regions_are_settled(context: PassContext) -> None:
    flag, x = source(spec("bool")), source(F)
    region = composite_block("inner_test", INNER)
    made = OPS["cond"].multi(flag, x, regions=(region, unary("abs")))[0]
    main = freeze([made], [flag, x])
    after = legalize(select(Program(main, (Port("f"), Port("x"))), context), context)
    assert ops(after.main.instructions[0].regions[0]) == ["neg", "exp", "neg"]


def test_choice_is_reported_once_for_equal_calls(context: PassContext) -> None:
    x = source(F)
    value = x
    for _ in range(3):
        value = OPS["composite"].multi(value, regions=(INNER,), name="inner_test")[0]
    seen: list[events.Event] = []
    remove = events.subscribe(seen.append)
    try:
        select(Program(freeze([value], [x]), (Port("x"),)), context)
    finally:
        remove()
    assert seen == [events.ImplementationChosen("inner_test", "portable", "composites are lowered")]


def test_benchmark_takes_the_fastest_of_those_that_apply(
    context: PassContext, backend, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    timed: list[list[str]] = []

    seconds = {"portable": 3.0, "fast": 2.0, "backend": 1.0}

    def timer(candidates: dict[str, Program], _: PassContext):
        for candidate in candidates.values():
            timed.append([i.op for i in legalize(candidate, context).main.instructions])
        return {name: [seconds[name]] for name in candidates}, {}

    monkeypatch.setattr(timing, "run_times", timer)
    del FUNCTIONALS["inner_test"].implementations["wrong"]
    context.overrides = (Override("inner_test", Policy("benchmark", cache=4)),)
    assert chosen(select(program("inner_test"), context))[0] == "fast"
    assert timed == [["neg", "exp", "neg"], ["tanh"]]
    backend.refuses = claim("inner_test")
    assert chosen(select(program("inner_test"), context))[0] == "backend"
    assert len(timed) == 5
    assert chosen(select(program("inner_test"), context))[0] == "backend"
    assert len(timed) == 5
    assert [(c.implementation, sorted(c.seconds)) for c in remembered.tuning_records()] == [
        ("backend", ["backend", "fast", "portable"])
    ]


def test_what_rounds_to_narrower_types_is_taken_by_name_alone(
    context: PassContext, backend, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    timed: list[str] = []

    def timer(candidates: dict[str, Program], _: PassContext):
        timed.extend(candidates)
        return {name: [1.0 if name == "narrow" else 2.0] for name in candidates}, {}

    monkeypatch.setattr(timing, "run_times", timer)
    del FUNCTIONALS["inner_test"].implementations["wrong"]
    narrow = Implementation("inner_test", "narrow", lambda t, a: unary("cos"), accuracy="narrower")
    register(narrow)
    context.overrides = (Override("inner_test", Policy("benchmark")),)
    assert chosen(select(program("inner_test"), context))[0] == "portable"
    assert timed == ["portable", "fast"]
    context.overrides = force("narrow")
    assert chosen(select(program("inner_test"), context)) == ("narrow", ["cos"])


def test_what_was_timed_is_followed_and_nothing_is_timed_for_it(
    context: PassContext, backend, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    context.overrides = (Override("inner_test", Policy("tuned")),)
    monkeypatch.delattr(timing, "run_times")
    assert chosen(select(program("inner_test"), context))[0] == "portable"
    monkeypatch.setattr(
        timing, "run_times",
        lambda candidates, _: ({name: [1.0 + (name != "fast")] for name in candidates}, {}),
        raising=False,
    )  # fmt: skip
    del FUNCTIONALS["inner_test"].implementations["wrong"]
    context.overrides = (Override("inner_test", Policy("benchmark")),)
    select(program("inner_test"), context)
    monkeypatch.delattr(timing, "run_times")
    context.overrides = (Override("inner_test", Policy("tuned")),)
    assert chosen(select(program("inner_test"), context))[0] == "fast"
    del FUNCTIONALS["inner_test"].implementations["fast"]
    assert chosen(select(program("inner_test"), context))[0] == "portable"


def test_what_was_not_timed_is_as_weaker_overrides_say(
    context: PassContext, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    tuned = Override("inner_test", Policy("tuned"), origin=origin("command line"))
    context.overrides = merged(force("fast", by="family"), [tuned])
    assert chosen(select(program("inner_test"), context))[0] == "fast"


@pytest.mark.parametrize(("fast", "found"), [("backend", "backend"), ("", "winograd")])
@pytest.mark.parametrize("policy", ["benchmark", "tuned"])
def test_what_is_timed_is_compared_with_what_weaker_overrides_say(
    policy, fast: str, found: str, context: PassContext, backend, monkeypatch, tmp_path
) -> None:
    """Also where it was timed without them: what was within the spread decided nothing."""
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    backend.refuses = lambda query: None if query.is_composite else f"no {query.name}"
    monkeypatch.setattr(
        timing, "run_times",
        lambda candidates, _: ({name: [1.0 + (name != fast)] * 3 for name in candidates}, {}),
    )  # fmt: skip
    types = spec("f32", 1, 9, 9, 4), spec("f32", 3, 3, 4, 8)
    called = ptir.capture(lambda x, w: ptir.functional.conv2d(x, w), *types)
    family = Override("conv2d", Policy("prefer", "winograd"), origin=origin("family"))
    timed = Override("conv2d", Policy("benchmark"), origin=origin("tune"))
    if policy == "tuned":
        context.overrides = (timed,)
        select(called, context)
        timed = replace(timed, policy=Policy("tuned"))
    context.overrides = merged([family], [timed])
    assert chosen(select(called, context))[0] == found


def test_what_is_timed_heeds_no_weaker_force_that_does_not_apply(
    context: PassContext, backend, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    backend.refuses = lambda query: None if query.name == "conv2d" else f"no {query.name}"
    monkeypatch.setattr(
        timing, "run_times", lambda candidates, _: ({name: [1.0] * 3 for name in candidates}, {})
    )
    types = spec("f32", 1, 9, 9, 4), spec("f32", 5, 5, 4, 8)
    called = ptir.capture(lambda x, w: ptir.functional.conv2d(x, w), *types)
    weak = force("winograd", "conv2d", by="checkpoint")
    context.overrides = merged(weak, [Override("conv2d", Policy("benchmark"))])
    assert chosen(select(called, context))[0] == "backend"


@pytest.mark.parametrize(
    ("taken", "size", "found", "said"),
    [
        ((CONV2D_WINOGRAD, "conv2d"), 3, "winograd", ""),
        ((CONV2D_WINOGRAD,), 3, "winograd", ""),
        (("conv2d",), 3, "backend", f"no {CONV2D_WINOGRAD}: paper takes it"),
        ((), 3, "portable", f"no {CONV2D_WINOGRAD}: no conv2d"),
        ((CONV2D_WINOGRAD, "conv2d"), 5, "backend", "the kernel is 5 x 5; 3 x 3 is taken: paper"),
    ],
)
def test_what_is_preferred_by_name_is_taken_where_it_is_a_kernel(
    taken: tuple[str, ...], size: int, found: str, said: str, context: PassContext, backend
) -> None:
    backend.refuses = lambda query: None if query.name in taken else f"no {query.name}"
    types = spec("f32", 1, 9, 9, 4), spec("f32", size, size, 4, 8)
    called = ptir.capture(lambda x, w: ptir.functional.conv2d(x, w), *types)
    context.overrides = (Override("conv2d", Policy("prefer", "winograd")),)
    heard: list[events.Event] = []
    remove = events.subscribe(heard.append)
    assert chosen(select(called, context))[0] == found
    remove()
    told = next(one for one in heard if isinstance(one, events.ImplementationChosen))
    assert told.reason.startswith(
        ": ".join(filter(None, ("conv2d=prefer=winograd, context", said)))
    )


def test_an_implementation_that_trips_over_another_call_hides_no_other(
    context: PassContext, backend
) -> None:
    def trips(types: tuple[TensorType, ...], attributes: Attributes) -> Block:
        raise NotImplementedError("not for these")

    FUNCTIONALS["inner_test"].implementations.clear()
    register(Implementation("inner_test", "trips", trips))
    backend.refuses = claim("inner_test")
    register(Implementation("inner_test", "same", lower_portable))
    with pytest.warns(RuntimeWarning, match="trips failed: NotImplementedError: not for these"):
        after = select(program("inner_test"), context)
    assert chosen(after) == ("backend", ops(INNER))
