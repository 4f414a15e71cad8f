"""Fusion: which instructions share a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper import TARGET, compiled, families

import ptir
from ptir import functional as F
from ptir.capture import call, call_multi
from ptir.capture.plan import plan_for
from ptir.codegen.families.linear.parts import HELD
from ptir.runtime.recorded import recorded_step
from ptir.types import spec
from running import llama_folder

WIDE = spec("f32", 64, 128)


def kernels(function: Any, *types: Any) -> list[str]:
    return families(compiled(ptir.capture(function, *types)))


def test_elementwise_ops_and_views_are_one_kernel() -> None:
    def body(x: Any) -> Any:
        return (F.tanh(x * 2.0).transpose(1, 0)[::-1] + 1.0).reshape(-1)

    assert kernels(body, WIDE) == ["map"]


@pytest.mark.parametrize(
    "body",
    [
        lambda x: F.softmax(x * 0.5),
        lambda x: F.layer_norm(x, x[0], x[1], epsilon=1e-5),
        lambda x: F.rms_norm(x, x[0], epsilon=1e-5) + x,
        lambda x: (x - x.max(axis=1, keepdims=True)).argmax(1),
    ],
    ids=["softmax", "layer_norm", "rms_norm", "arg_max"],
)
def test_a_row_program_is_one_kernel(body: Any) -> None:
    assert kernels(body, WIDE) == ["row_reduction"]


def test_a_contraction_takes_in_what_follows_it() -> None:
    def body(x: Any, y: Any) -> Any:
        return F.gelu(x @ y + 1.0) * x[:, :1]

    assert kernels(body, spec("f32", 8, 8), spec("f32", 8, 8)) == ["matmul"]


def test_a_result_with_two_readers_is_stored_once() -> None:
    def body(x: Any) -> Any:
        y = F.exp(x).sum(axis=1, keepdims=True)
        return F.tanh(x) * y, (F.tanh(x).transpose(1, 0)).sum(axis=1)

    made = compiled(ptir.capture(body, WIDE))
    shared = [k.fusion.outputs for k in made.kernels if k is not None and k.family == "map"]
    assert len(shared) == 1


def test_a_cheap_value_is_computed_again_in_every_kernel() -> None:
    def body(x: Any) -> Any:
        y = x + 1.0
        return y.sum(axis=1), y.transpose(1, 0).max(axis=1)

    assert "map" not in kernels(body, WIDE)


def running(x: Any) -> Any:
    return call("cumulative", x, axis=1, kind="sum")


def test_running_sums_do_not_grow_with_every_step() -> None:
    made = compiled(ptir.capture(running, spec("f32", 1, 4096)))
    assert max(len(k.code.text) for k in made.kernels if k is not None) < 20_000


def test_a_decode_step_of_gpt2_is_five_kernels_a_layer() -> None:
    loaded = ptir.load_model("random:gpt2-tiny", backend=TARGET)
    found = families(compiled(recorded_step(loaded, 1, 1, 64).program))
    layer = ["linear", "attention", "linear", "linear", "linear"]
    assert found == ["map", *layer, *layer, "linear"]


@pytest.mark.parametrize("options", [{}, {"dtype": "bf16"}, {"quant": "int4"}])
def test_a_decode_step_of_llama_is_five_kernels_a_layer(options: dict[str, str]) -> None:
    """Cosines and sines once; projections of one input together; turns inside attention."""
    loaded = ptir.load_model("random:llama-tiny", backend=TARGET, **options)
    found = families(compiled(recorded_step(loaded, 1, 1, 64).program))
    layer = ["linear", "attention", "linear", "linear", "linear"]
    assert [name for name in found if name != "map"] == [*layer * 3, "linear"]
    assert found.count("map") == 3


def test_activations_that_are_too_many_for_an_item_are_stored(tmp_path: Path) -> None:
    wide = llama_folder(tmp_path, intermediate_size=HELD // 8 + 32)
    loaded = ptir.load_model(wide, backend=TARGET)
    few, many = (families(compiled(recorded_step(loaded, rows, 1, 64).program)) for rows in (7, 8))
    assert many.count("map") == few.count("map") + loaded.checkpoint.config["num_hidden_layers"]


def test_weights_are_read_in_panels_wherever_they_are_read() -> None:
    loaded = ptir.load_model("random:gpt2-tiny", backend=TARGET)
    plan = plan_for(recorded_step(loaded, 1, 1, 64).program, TARGET)
    ports = [p.name for p in plan.optimized.ports if p.kind == "parameter"]
    assert "wte.weight" not in ports
    packed = [
        t
        for t, p in zip(plan.optimized.inputs, plan.optimized.ports, strict=True)
        if p.name.startswith("derived:")
    ]
    assert len(packed) == 1 + 4 * 2
    assert sum(np.prod(t.shape) for t in packed) < 1.02 * 50257 * 64 + 2 * 12 * 64 * 64


@pytest.mark.parametrize(
    ("body", "family"),
    [
        (lambda x: F.avg_pool2d(x, 2), "reduce"),
        (lambda x: F.maximum(F.max_pool2d(x, 2), 0.0), "reduce"),
        (lambda x: x.mean(axis=(1, 2)), "reduce"),
        (lambda x: call_multi("top_k", x * 2.0, k=3)[0], "sort"),
    ],
    ids=["avg_pool", "max_pool_relu", "mean", "top_k"],
)
def test_what_follows_or_precedes_a_hero_costs_no_kernel(body: Any, family: str) -> None:
    assert kernels(body, spec("f32", 1, 8, 8, 32)) == [family]


def test_random_floats_are_one_kernel() -> None:
    def body(key: Any) -> Any:
        return (call("rng_bits", key, shape=(100,)) >> 8).astype("f32") * 2.0**-24

    assert kernels(body, spec("u32", 2)) == ["random"]


SQUARE = spec("f32", 8, 8)


@pytest.mark.parametrize(
    ("body", "family"),
    [
        (lambda x, y: (x @ y) * (y @ x), "matmul"),
        (lambda x, y: x.sum(axis=0) * y.sum(axis=0), "reduce"),
        (lambda x, y: x.sum(axis=1) * y.max(axis=0), "row_reduction"),
        (lambda x, y: F.where(x.sum(axis=1) > 0.0, y.argmax(0), 1), "reduce"),
    ],
    ids=["matmuls", "reductions", "rows and reduction", "arg_max"],
)
def test_what_two_heroes_lead_to_joins_one_of_them(body: Any, family: str) -> None:
    found = kernels(body, SQUARE, SQUARE)
    assert len(found) == 2 and family in found


def test_two_convolutions_are_added_in_the_second() -> None:
    def body(x: Any, weight: Any) -> Any:
        return F.conv2d(x, weight) + F.conv2d(x * 2.0, weight)

    types = spec("f32", 1, 8, 8, 16), spec("f32", 1, 1, 16, 16)
    assert kernels(body, *types) == ["convolution"] * 2
