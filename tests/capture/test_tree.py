"""Tensors inside containers as arguments and results of jitted functions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ptir
from ptir.capture.tree import describe, flatten, unflatten
from ptir.errors import CaptureError


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Layer:
    weight: Any
    name: str = "layer"
    scale: float = 1.0


@dataclass
class Net:
    layers: list[Layer]
    _: KW_ONLY
    extra: dict[str, Any] = field(default_factory=dict)
    count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a net has layers")
        self.count = len(self.layers)


def containers(leaves: Any) -> Any:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3),
            st.builds(Pair, inner, inner),
            st.builds(Layer, inner, st.just("n"), st.just(2.0)),
            st.none(),
        ),
        max_leaves=8,
    )


@given(containers(st.integers()))
def test_what_is_taken_apart_is_put_together_again(value: Any) -> None:
    leaves: list[Any] = []
    structure = flatten(value, leaves)
    hash(structure)
    assert unflatten(structure, iter(leaves)) == value
    again: list[Any] = []
    changed = [leaf + 1 for leaf in leaves]
    assert flatten(unflatten(structure, iter(changed)), again) == structure
    assert again == changed


def test_structures_tell_containers_apart() -> None:
    values = [(1,), [1], {"a": 1}, {"b": 1}, {0: 1}, Pair(1, 2), (1, 2), Layer(1), None, (), [], {}]
    structures = [flatten(value, []) for value in values]
    assert len(set(structures)) == len(values)
    described = [describe(structure) for structure in structures]
    assert len(set(described)) == len(values)
    assert described[:3] == ["(*,)", "[*]", "{'a': *}"]
    assert described[7] == "Layer(weight=*, name='layer', scale=*)"


def test_jit_takes_and_gives_containers() -> None:
    calls: list[int] = []

    @ptir.jit
    def grow(net: Net, pair: Pair, nothing: None = None) -> Any:
        calls.append(1)
        layers = [Layer(a.weight * a.scale + pair.left, a.name, a.scale) for a in net.layers]
        return {"net": Net(layers, extra={"sum": pair.right.sum()}), "pair": pair, "none": nothing}

    def arguments(value: float) -> tuple[Any, Any]:
        x = ptir.tensor([value, 2.0])
        return Net([Layer(x, "a", 2.0), Layer(x + 1.0, "b")], extra={"z": x}), Pair(x, x)

    for value in (1.0, 5.0):
        found = grow(*arguments(value))
        net = found["net"]
        assert isinstance(net, Net) and isinstance(found["pair"], Pair)
        assert (found["none"], net.count) == (None, 2)
        assert net.layers[0].weight.numpy().tolist() == [3 * value, 6]
        assert net.layers[1].weight.numpy().tolist() == [2 * value + 1, 5]
        assert float(net.extra["sum"]) == value + 2
        assert found["pair"].left.numpy().tolist() == [value, 2]
    assert len(calls) == grow.signatures == 1
    net, pair = arguments(1.0)
    net.layers[0] = Layer(net.layers[0].weight, "a", 3.0)
    assert grow(net, pair)["net"].layers[0].weight.numpy().tolist() == [4, 8]
    assert grow.signatures == 2


def test_static_text_comes_back_as_it_went_in() -> None:
    found = ptir.jit(lambda layer: layer)(Layer(ptir.tensor([1.0]), "deep", 0.5))
    assert (found.weight.numpy().tolist(), found.name, float(found.scale)) == ([1], "deep", 0.5)


def test_donating_a_container_consumes_every_tensor_in_it() -> None:
    step = ptir.jit(lambda state, x: Pair(state.left + x, state.right * x), donate=["state"])
    state = Pair(ptir.tensor([1.0]), ptir.tensor([2.0]))
    x = ptir.tensor([3.0])
    after = step(state, x)
    assert [t.numpy().tolist() for t in after] == [[4], [6]]
    for tensor in state:
        with pytest.raises(CaptureError, match="donated"):
            tensor.numpy()
    assert x.numpy().tolist() == [3]


@pytest.mark.parametrize("value", [object(), {1, 2}, Layer(object())])
def test_what_is_no_container_is_refused_by_its_kind(value: Any) -> None:
    with pytest.raises(CaptureError, match=r"an argument holds (object|set); pass tensors"):
        ptir.jit(lambda v: ptir.tensor([1.0]))(value)
    with pytest.raises(CaptureError, match=r"a captured function returned (object|set); return"):
        ptir.jit(lambda x: value)(np.zeros(1, np.float32))
