"""Every implementation computes what its functional says: against float64, and by its accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ptir
from devices import device
from ptir import events
from ptir import functional as F
from ptir.capture.plan import PLANS
from ptir.errors import UnsupportedError
from ptir.ir.attributes import Attributes
from ptir.ops.implementations import FUNCTIONALS, PORTABLE
from together import together

Array = np.ndarray[Any, Any]
UNIT = float(np.finfo(np.float32).eps) / 2


@dataclass(frozen=True)
class Case:
    """A call on arrays; its exact results, and the size of what is added up to give them."""

    name: str
    functional: str
    implementation: str
    run: Callable[..., Any]
    given: tuple[Array, ...]
    exact: Callable[..., Any]
    scale: Callable[..., Any] = lambda *given: 1.0
    roundings: int = 16

    def __str__(self) -> str:
        return f"{self.functional}={self.implementation}, {self.name}"


def normal(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def softmax64(x: Array, axis: int = -1) -> Array:
    wide = x.astype("f8")
    with np.errstate(invalid="ignore"):
        weights = np.exp(wide - np.where(np.isinf(m := wide.max(axis, keepdims=True)), 0, m))
    total = weights.sum(axis, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def attention64(
    q: Array,
    k: Array,
    v: Array,
    start: Array,
    length: Array,
    sinks: Array | None = None,
    causal: bool = True,
    window: int | None = None,
    cap: float | None = None,
) -> Array:
    (B, H, T, D), (G, C) = q.shape, k.shape[1:3]
    keys, values = (np.repeat(each.astype("f8"), H // G, axis=1) for each in (k, v))
    scores = np.einsum("bhtd,bhcd->bhtc", q.astype("f8"), keys) / np.sqrt(D)
    scores = scores if cap is None else np.tanh(scores / cap) * cap
    places, j = start[:, None, None, None] + np.arange(T)[:, None], np.arange(C)
    seen = j < length[:, None, None, None]
    seen = seen & (j <= places) if causal else seen
    seen = seen & (j > places - window) if window is not None else seen
    scores = np.where(seen, scores, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(sinks.astype("f8")[None, :, None, None], (B, H, T, 1))
        scores = np.concatenate([scores, column], -1)
    weights = softmax64(scores)[..., :C]
    stored = np.where((j < length[:, None])[:, None, :, None], values, 0)
    return np.einsum("bhtc,bhcd->bhtd", weights, stored)


def conv64(x: Array, w: Array, b: Array | None = None, low: int = 1, high: int = 1) -> Array:
    wide = np.pad(x.astype("f8"), ((0, 0), (low, high), (low, high), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(1, 2))
    found = np.einsum("nhwcij,ijco->nhwo", windows, w.astype("f8"))
    return found if b is None else found + b


def pool64(kind: str, x: Array, window: tuple[int, int], strides: tuple[int, int], pad: int):
    wide = x.astype("f8")
    filled = np.pad(
        wide,
        ((0, 0), (pad, pad), (pad, pad), (0, 0)),
        constant_values=-np.inf if kind == "max" else 0,
    )
    windows = np.lib.stride_tricks.sliding_window_view(filled, window, axis=(1, 2))
    found = windows[:, :: strides[0], :: strides[1]]
    return getattr(found, kind)(axis=(-2, -1))


def top64(x: Array, k: int) -> tuple[Array, Array]:
    places = np.argsort(np.where(np.isnan(x), np.inf, -x.astype("f8")), axis=-1, kind="stable")
    chosen = places[..., :k]
    return np.take_along_axis(x, chosen, -1), chosen


def _attention(**how: Any) -> Callable[..., Any]:
    def run(q, k, v, start, length, *sinks):
        more = {"sinks": sinks[0]} if sinks else {}
        return F.attention(q, k, v, start=start, length=length, **more, **how)

    return run


def attentions() -> Iterator[Case]:
    B, T, C, D = 3, 5, 24, 8
    start, length = np.array([0, 3, 19], "i4"), np.array([5, 8, 24], "i4")
    for name in ("online", "split"):
        for H, G, sinks, how in (
            (4, 2, False, {}),
            (2, 2, True, {"causal": False}),
            (3, 1, True, {"window": 4, "soft_cap": 2.0}),
        ):
            given = (normal(B, H, T, D), normal(B, G, C, D), normal(B, G, C, D, seed=4))
            given[1][0, :, 5:] = given[2][0, :, 5:] = np.nan  # beyond the length, without influence
            given = (*given, start, length, *((normal(H),) if sinks else ()))
            spelled = {("cap" if key == "soft_cap" else key): value for key, value in how.items()}

            def exact(*arrays: Array, spelled: dict[str, Any] = spelled) -> Array:
                return attention64(*arrays, **spelled)

            yield Case(
                f"{H}/{G} {how}", "attention", name, _attention(**how), given, exact, roundings=64
            )


def exact_linear(x: Array, w: Array, b: Array) -> Array:
    return x.astype("f8") @ w.astype("f8").T + b


def cases() -> Iterator[Case]:
    yield from attentions()
    masked = normal(3, 64)
    masked[1], masked[2, ::2] = -np.inf, -np.inf
    for axis, x in ((1, masked), (0, normal(40, 6) * 30), (1, normal(2, 16, 3))):
        for name in ("online", "split"):
            yield Case(
                f"axis {axis} of {x.shape}", "softmax", name,
                lambda t, axis=axis: F.softmax(t, axis=axis), (x,),
                lambda a, axis=axis: softmax64(a, axis), roundings=64,
            )  # fmt: skip
    yield Case(
        "rows", "linear", "rows", lambda x, w, b: F.linear(x, w, b, layout="oi"),
        (normal(2, 3, 70), normal(9, 70), normal(9)), exact_linear,
        lambda x, w, b: np.abs(x.astype("f8")) @ np.abs(w.astype("f8")).T + np.abs(b), 80,
    )  # fmt: skip
    for shape, padding in (((2, 7, 9, 5), 1), ((1, 4, 4, 3), 0), ((1, 6, 5, 2), 2)):
        filters, bias = normal(3, 3, shape[3], 4), normal(4)
        for layout in ("hwio", "oihw"):
            stored = filters if layout == "hwio" else filters.transpose(3, 2, 0, 1).copy()
            yield Case(
                f"{shape} {layout} {padding}", "conv2d", "winograd",
                lambda x, w, b, padding=padding, layout=layout: F.conv2d(
                    x, w, b, padding=padding, layout=layout),
                (normal(*shape), stored, bias),
                lambda x, w, b, filters=filters, p=padding: conv64(x, filters, b, p, p),
                # An output is a sum of products of tiles, which hold up to four inputs each.
                lambda x, w, b, filters=filters, p=padding: 16 * conv64(
                    np.full_like(x, np.abs(x).max()), np.abs(filters), np.abs(b), p + 1, p + 1
                ).max(), 8,
            )  # fmt: skip
    for kind in ("max", "avg"):
        for window, strides, pad in (((3, 2), (1, 1), 1), ((5, 5), (2, 3), 2), ((1, 4), (4, 1), 0)):
            run = getattr(F, f"{kind}_pool2d")
            yield Case(
                f"{window} {strides} {pad}", f"{kind}_pool2d", "separable",
                lambda x, run=run, w=window, s=strides, p=pad: run(
                    x, w, strides=s, padding=min(p, w[0] // 2, w[1] // 2)),
                (normal(2, 9, 8, 3),),
                lambda x, kind=kind, w=window, s=strides, p=pad: pool64(
                    {"avg": "mean"}.get(kind, kind), x, w, s, min(p, w[0] // 2, w[1] // 2)),
                lambda x: np.abs(x).max(), 32,
            )  # fmt: skip
    yield Case(
        "other padding below", "max_pool2d", "separable",
        lambda x: F.max_pool2d(x, (3, 4), strides=1, padding=((0, 1), (2, 0))),
        (normal(2, 6, 7, 3),),
        lambda x: pool64("max", np.pad(
            x, ((0, 0), (0, 1), (2, 0), (0, 0)), constant_values=-np.inf), (3, 4), (1, 1), 0),
    )  # fmt: skip
    few = np.round(normal(2, 3, 48) * 2)  # many equal ones
    few[0, 1, 5], few[1, 2, :40], few[0, 0, 3:9] = np.nan, np.nan, -0.0
    for k in (1, 3, 12):
        yield Case(
            f"k {k}", "top_k", "blocks", lambda x, k=k: F.top_k(x, k), (few,),
            lambda x, k=k: top64(x, k), roundings=0,
        )  # fmt: skip


CASES = {str(case): case for case in cases()}


def run(case: Case, implementation: str, backend: str) -> list[Array]:
    """What the call gives with an implementation, which must have been the one that was used."""
    heard: list[str] = []

    def hear(event: events.Event) -> None:
        if isinstance(event, events.ImplementationChosen) and event.functional == case.functional:
            heard.append(event.implementation)

    tensors = [ptir.tensor(array, backend=backend) for array in case.given]
    PLANS.clear()  # so that something is chosen
    remove = events.subscribe(hear)
    try:
        with ptir.overrides({case.functional: f"force={implementation}"}):
            found = case.run(*tensors)
            several = found if isinstance(found, tuple) else (found,)
            arrays = [tensor.numpy() for tensor in several]
    finally:
        remove()
    assert heard and set(heard) == {implementation}
    return arrays


@pytest.mark.parametrize("functional", sorted({case.functional for case in CASES.values()}))
def test_results_are_those_of_float64(functional: str) -> None:
    for case in (case for case in CASES.values() if case.functional == functional):
        wanted = case.exact(*case.given)
        several = wanted if isinstance(wanted, tuple) else (wanted,)
        bound = case.roundings * UNIT * np.asarray(case.scale(*case.given))
        for found, exact in zip(run(case, case.implementation, "ref"), several, strict=True):
            assert found.shape == exact.shape, str(case)
            off = np.abs(found - exact) - bound
            assert not np.any(off > 0), f"{case}: {np.nanmax(off)} beyond {np.max(bound)}"
            np.testing.assert_array_equal(np.isnan(found), np.isnan(exact), str(case))


@together()
@pytest.mark.parametrize("case", CASES)
def test_exact_implementations_give_every_bit_of_the_portable_one(case: str) -> None:
    found = CASES[case]
    one = FUNCTIONALS[found.functional].implementations[found.implementation]
    if one.accuracy == "exact":
        pairs = zip(run(found, one.name, "ref"), run(found, PORTABLE, "ref"), strict=True)
        for mine, portable in pairs:
            assert mine.tobytes() == portable.tobytes(), case


@pytest.mark.parametrize(
    ("window", "strides", "implementation"),
    [
        (3, 1, "separable"),
        ((3, 5), 1, "separable"),
        (13, 1, "separable"),
        (13, 4, "portable"),
        (2, 2, "portable"),  # as ResNet's and VGG's: nothing is saved
        (3, 2, "portable"),
        ((1, 7), 1, "portable"),
    ],
)
def test_large_windows_are_folded_in_turn(window: Any, strides: int, implementation: str) -> None:
    program = ptir.capture(
        lambda x: F.max_pool2d(x, window, strides=strides), ptir.spec("f32", 2, 15, 16, 3)
    )
    (call,) = program.main.instructions
    found = FUNCTIONALS["max_pool2d"].default(program.inputs, call.attributes)
    assert found[0] == implementation


def test_default_of_large_windows_gives_every_bit_of_the_portable_one() -> None:
    target = device("c")
    x = np.round(np.random.default_rng(4).normal(size=(2, 9, 10, 3)) * 2).astype("f4")
    x[0, 3, 4:7], x[1, 8, 2, 1], x[1, 2, 3] = -0.0, np.nan, -np.inf
    pool = ptir.jit(lambda x: (F.max_pool2d(x, 5, strides=1, padding=2), F.max_pool2d(x, (3, 4))))
    found = pool(ptir.tensor(x, backend=target))
    (plan,) = pool.plans
    used = {i.location.implementation for i in plan.optimized.main.instructions}
    assert used == {"separable", "portable"}
    with ptir.overrides(max_pool2d="force=portable"):
        wanted = pool(ptir.tensor(x, backend=target))
    for one, other in zip(found, wanted, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


def test_every_alternative_has_a_case() -> None:
    ours = {(case.functional, case.implementation) for case in CASES.values()}
    elsewhere = {  # which have tests of their own
        ("conv2d", "int8"),
        ("linear", "bf16"),
        ("quantized_linear", "int8"),
        ("gated_delta_rule", "chunked"),
        ("gated_delta_rule", "recurrent"),
        ("gated_linear_attention", "chunked"),
        ("gated_linear_attention", "recurrent"),
    }
    for name, found in FUNCTIONALS.items():
        for one in found.implementations.values():
            known = one.lower.__module__ if hasattr(one.lower, "__module__") else ""
            if one.name != PORTABLE and known.startswith("ptir.functional"):
                assert (name, one.name) in ours | elsewhere


REFUSED = [
    ("linear", "rows", "oi is taken", lambda: F.linear(full(2, 4), full(4, 3))),
    ("linear", "rows", "x has 9 rows", lambda: F.linear(full(9, 4), full(3, 4), layout="oi")),
    ("softmax", "split", "are not 8 equal parts", lambda: F.softmax(full(2, 9))),
    ("conv2d", "winograd", "5 x 3; 3 x 3 is", lambda: F.conv2d(full(1, 9, 9, 2), full(5, 3, 2, 2))),
    ("conv2d", "winograd", r"strides is \(2, 2\)",
     lambda: F.conv2d(full(1, 9, 9, 2), full(3, 3, 2, 2), strides=2)),
    ("conv2d", "winograd", "groups is 2",
     lambda: F.conv2d(full(1, 9, 9, 2), full(3, 3, 1, 2), groups=2)),
    ("conv2d", "int8", "groups is 2; 1 is taken",
     lambda: F.conv2d(full(1, 9, 9, 2), full(3, 3, 1, 2), groups=2)),
    ("conv2d", "int8", "has 66321 products; sums of up to 66311 bytes fit 32 bits",
     lambda: F.conv2d(full(1, 3, 3, 7369), full(3, 3, 7369, 1))),
    ("top_k", "blocks", "no equal stretches of at least 2 x 4", lambda: F.top_k(full(2, 9), 4)[0]),
    ("attention", "split", "5 keys are no two equal parts",
     lambda: F.attention(full(1, 1, 2, 4), full(1, 1, 5, 4), full(1, 1, 5, 4))),
]  # fmt: skip


def full(*shape: int) -> ptir.Tensor:
    return ptir.tensor(np.ones(shape, np.float32), backend="ref")


@together()
@pytest.mark.parametrize(("functional", "name", "said", "call"), REFUSED)
def test_calls_that_an_implementation_does_not_take_are_refused_with_the_reason(
    functional: str, name: str, said: str, call: Callable[[], ptir.Tensor]
) -> None:
    forced = ptir.overrides({functional: f"force={name}"})
    with forced, pytest.raises(UnsupportedError, match=said):
        call().numpy()


@together()
@pytest.mark.parametrize(("functional", "name", "said", "call"), REFUSED)
def test_lowerings_refuse_those_calls_too(
    functional: str, name: str, said: str, call: Callable[[], ptir.Tensor]
) -> None:
    """A program from outside may claim that its composites are lowered so."""
    node = call().ref.node
    while node.attributes.get("name") != functional:
        node = node.operands[0].node
    lower = FUNCTIONALS[functional].implementations[name].lower
    attributes = Attributes({k: v for k, v in node.attributes.items() if k != "name"})
    with pytest.raises(UnsupportedError, match=said):
        lower([operand.type for operand in node.operands], attributes)
