"""What modules record knows them: the scope is the path that checkpoint keys take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ptir
from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import TypeRuleError
from ptir.ir.location import ROOT
from ptir.ir.program import Block
from ptir.nn import Linear, Module
from ptir.types import spec

X = spec("f32", 2, 4)


class Attention(Module):
    def __init__(self) -> None:
        self.proj = Linear(4, 4)

    def __call__(self, x: Tensor) -> Tensor:
        return F.softmax(self.proj(x) * 2.0)


class Layer(Module):
    def __init__(self) -> None:
        self.attn = Attention()
        self.experts = [Linear(4, 4), Linear(4, 4)]

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.experts[1](self.attn(x))


class Two(Module):
    def __init__(self) -> None:
        self.first = Linear(4, 4, bias=False)
        self.h = [Layer(), Layer()]

    def __call__(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.h:
            x = layer(x)
        return F.abs(x)


def bound(model: Module, body: Callable[[Module, Tensor], Tensor]) -> Block:
    """What ``body`` records of the model, whose parameters are inputs; all by name."""
    types = model.parameters()

    def run(x: Tensor, *given: Tensor) -> Tensor:
        return body(model.bind(dict(zip(types, given, strict=True)).__getitem__), x)

    return ptir.capture(run, X, *types.values()).main


def scopes(block: Block) -> list[tuple[str, str, str]]:
    """The scope, layer and functional of each instruction that is no constant, in order."""
    named = (i.location for i in block.instructions if i.op not in ("constant", "broadcast_to"))
    return [(place.scope, place.layer, place.functional) for place in named]


def test_scopes_of_a_model_with_two_layers() -> None:
    layers = [
        each
        for n in (0, 1)
        for each in (
            (f"h.{n}.attn.proj", f"h.{n}", "linear"),
            (f"h.{n}.attn", f"h.{n}", ""),
            (f"h.{n}.attn", f"h.{n}", "softmax"),
            (f"h.{n}.experts.1", f"h.{n}", "linear"),
            (f"h.{n}", f"h.{n}", ""),
        )
    ]
    found = scopes(bound(Two(), lambda model, x: model(x)))
    assert found == [("first", "", "linear"), *layers, ("", "", "")]


def test_scopes_are_where_the_keys_of_parameters_begin() -> None:
    keys: list[str] = []
    model = Two().bind(lambda key: keys.append(key) or key)  # type: ignore[arg-type, func-returns-value]
    assert keys == list(Two().parameters())
    assert model.h[1].experts[0].name == "h.1.experts.0"
    assert {model.h[1].experts[0].weight, model.h[1].experts[0].bias} == {
        "h.1.experts.0.weight",
        "h.1.experts.0.bias",
    }
    below = Linear(4, 4).bind(lambda key: key, ROOT.member("h").item(2))  # type: ignore[arg-type, return-value]
    assert (below.name, below.weight) == ("h.2", "h.2.weight")


def test_a_module_of_no_tree_leaves_the_scope_to_who_calls_it() -> None:
    class Unnamed(Module):
        def __call__(self, x: Tensor) -> Tensor:
            return F.exp(x)

    class Outer(Module):
        def __call__(self, x: Tensor) -> Tensor:
            return Unnamed()(x)

    class Root(Module):
        def __init__(self) -> None:
            self.outer = Outer()

        def __call__(self, x: Tensor) -> Tensor:
            return F.abs(self.outer(x))

    assert scopes(bound(Root(), lambda model, x: model(x))) == [("outer", "", ""), ("", "", "")]


def test_a_layer_that_fails_is_left() -> None:
    class Failing(Module):
        def __call__(self, x: Tensor) -> Tensor:
            raise ValueError

    class Root(Module):
        def __init__(self) -> None:
            self.failing = Failing()

    def body(model: Root, x: Tensor) -> Tensor:
        with pytest.raises(ValueError, match=r"^$"):
            model.failing(x)
        return F.exp(x)

    assert scopes(bound(Root(), body)) == [("", "", "")]  # type: ignore[arg-type]


def test_what_is_lowered_once_for_all_layers_remembers_none_of_them() -> None:
    block = bound(Two(), lambda model, x: model(x))
    lowerings = {id(i.regions[0]): i.regions[0] for i in block.instructions if i.regions}
    assert len(lowerings) == 3
    found = {
        (i.location.file, i.location.scope) for b in lowerings.values() for i in b.instructions
    }
    assert found == {("", "")}


def test_a_type_error_names_the_layer() -> None:
    class Wrong(Module):
        def __call__(self, x: Tensor) -> Tensor:
            return x.reshape(5)

    class Root(Module):
        def __init__(self) -> None:
            self.h = [Wrong()]

    with pytest.raises(TypeRuleError, match=rf"\n  at {__file__}:\d+ \(h\.0\)$"):
        bound(Root(), lambda model, x: model.h[0](x))  # type: ignore[attr-defined]


def test_a_tensor_that_is_computed_at_once_is_recorded_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PTIR_EAGER", "1")
    weight = ptir.tensor([[1.0] * 4] * 4, backend="ref")

    class Root(Module):
        def __init__(self) -> None:
            self.h = [Linear(4, 4, bias=False)]

    layer = Root().bind(lambda key: weight).h[0]
    result = layer(ptir.tensor([[1.0] * 4], backend="ref"))
    place = result.ref.node.location
    assert (place.file, place.scope, place.functional) == (__file__, "h.0", "linear")
    assert result.numpy().tolist() == [[4.0] * 4]
