"""Which schedule a kernel gets, who decides it, and that both give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opencl_runs import close, normal, run, with_parameters
from test_opencl_families import attention

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture import call, call_multi
from ptir.capture.plan import PLANS
from ptir.cli.main import main
from ptir.codegen.artifact import record
from ptir.codegen.compile import compile_block
from ptir.codegen.context import Context
from ptir.codegen.families import FAMILIES
from ptir.codegen.schedules.kernel import Kernel
from ptir.codegen.schedules.schedules import schedule_of
from ptir.errors import UsageError
from ptir.ops.overriding import active_overrides
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir.switches import SCHEDULE
from ptir.types import TensorType, spec

SERIAL_ONLY = frozenset(("rounding", "image_rounding", "byte_convolution"))
"""Families without a coop form; what it feeds is for dot instructions."""
OF_PARAMETERS = frozenset(("linear", "experts"))
"""Families whose weights are packed: their coop tests are elsewhere."""


def kernels(target: Target, function: Callable[..., Any], *types: TensorType) -> list[Kernel]:
    """The kernels that a function of tensors is compiled to."""
    program = ptir.capture(function, *types)
    backend: Any = target.backend
    context = PassContext(backend, target.device, active_overrides())
    device = backend.opened(target.device).device
    found = compile_block(
        optimize(program, context).main, Context.of(device, apart=True), Options()
    )
    return [kernel for kernel in found.kernels if kernel is not None]


HEROES: dict[str, tuple[Callable[..., Any], tuple[TensorType, ...]]] = {
    "map": (lambda x: x + 1.0, (spec("f32", 300),)),
    "row_reduction": (lambda x: F.softmax(x, axis=-1), (spec("f32", 3, 300),)),
    "reduce": (
        lambda x: call("reduce", x, axes=(0,), kind="sum"),
        (spec("f32", 30, 40),),
    ),
    "matmul": (
        lambda x, y: call(
            "dot_general", x, y, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,)
        ),
        (spec("f32", 20, 30), spec("f32", 30, 40)),
    ),
    "sort": (lambda x: call_multi("sort", x, axis=1, descending=False)[0], (spec("f32", 3, 100),)),
    "cumulative": (lambda x: call("cumulative", x, axis=1, kind="sum"), (spec("f32", 3, 300),)),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1, layout="hwio"),
        (spec("f32", 1, 8, 8, 4), spec("f32", 3, 3, 4, 20)),
    ),
    "random": (
        lambda key: call("rng_bits", key, shape=(100,)),
        (spec("u32", 2),),
    ),
    "scatter": (
        lambda x, i, u: call("scatter_reduce", x, i, u, axes=(0,), batch=0, kind="add"),
        (spec("f32", 9, 5), spec("i32", 4, 1), spec("f32", 4, 5)),
    ),
    "cache": (
        F.cache_update,
        (spec("f32", 1, 2, 8, 4), spec("f32", 1, 2, 3, 4), spec("i32", 1), spec("i32", 1)),
    ),
    "recurrence": (
        F.gated_delta_rule,
        (
            *(spec("f32", 1, 2, 3, 8),) * 2,
            spec("f32", 1, 4, 3, 20),
            *(spec("f32", 1, 4, 3),) * 2,
            spec("f32", 1, 4, 8, 20),
            spec("i32", 1),
        ),
    ),
    "attention": (
        lambda q, k, s, n: F.attention(q, k, k, start=s, length=n),
        (spec("f32", 1, 2, 5, 16), spec("f32", 1, 2, 8, 16), spec("i32", 1), spec("i32", 1)),
    ),
}


@pytest.mark.parametrize("family", HEROES)
def test_a_family_is_groups_where_they_are_forced_and_items_where_not(
    opencl: Target, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, types = HEROES[family]
    assert [
        k.workgroup_size > 1 for k in kernels(opencl, function, *types) if k.family == family
    ] == [True]
    monkeypatch.setenv(SCHEDULE, "serial")
    found = kernels(opencl, function, *types)
    assert [k.workgroup_size for k in found] == [1] * len(found)


def test_every_family_is_asked_for_here() -> None:
    assert set(HEROES) | OF_PARAMETERS | SERIAL_ONLY == set(FAMILIES)


def test_a_schedule_is_one_of_two_and_only_where_there_are_groups(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    assert schedule_of(device) == "coop"
    monkeypatch.setenv(SCHEDULE, "cooperative")
    with pytest.raises(UsageError, match="cooperative"):
        schedule_of(device)
    monkeypatch.setenv(SCHEDULE, "coop")
    monkeypatch.setattr(device.dialect, "workgroup", None)
    with pytest.raises(UsageError, match="has no work-groups, and cooperative kernels"):
        schedule_of(device)
    monkeypatch.delenv(SCHEDULE)
    assert schedule_of(device) == "serial"


def test_recipes_of_both_schedules_lie_side_by_side(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PTIR_REBUILD_KERNELS", raising=False)
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    program = ptir.capture(lambda x: x + 1.0, spec("f32", 4))
    coop = record.cache_key(program, device, Options())
    monkeypatch.setenv(SCHEDULE, "serial")
    assert coop is not None
    assert record.cache_key(program, device, Options()) not in (None, coop)


def test_a_recipe_keeps_the_members_of_its_launches(opencl: Target) -> None:
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    program = ptir.capture(lambda x: x + 1.0, spec("f32", 300))
    made = compile_block(program.main, Context.of(device), Options()).artifact()
    assert [each.workgroup_size > 1 for each in made.commands] == [True]
    assert record.Artifact.decoded(made.encoded()) == made


@pytest.mark.slice(1)
@pytest.mark.parametrize("rows", [1, 3, 8, 20, 70])
@pytest.mark.parametrize("inputs", [36, 260, 1030])
def test_both_schedules_of_a_product_with_a_norm_in_front(
    opencl: Target, rows: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = normal(rows, inputs), normal(inputs, 70, seed=1)

    def body(x: Any, weight: Any) -> Any:
        return F.tanh(F.linear(F.softmax(x * 3.0, axis=-1), weight, layout="io") * 9.0)

    coop = with_parameters(opencl, body, x, weight)
    monkeypatch.setenv(SCHEDULE, "serial")
    PLANS.clear()
    close(coop, with_parameters(opencl, body, x, weight), 2e-5)
    shares = np.exp(x.astype(np.float64) * 3)
    close(coop, np.tanh(shares / shares.sum(-1, keepdims=True) @ weight * 9), 1e-4)


def _softmax(x: Any) -> Any:
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize(("rows", "inputs"), [(2, 4100), (2, 4099), (8, 1024), (3, 5000)])
@pytest.mark.parametrize(("before", "expected"), [(F.exp, np.exp), (F.softmax, _softmax)])
def test_activations_that_do_not_fit_into_shared_memory_come_in_parts(
    opencl: Target,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    inputs: int,
    before: Any,
    expected: Any,
) -> None:
    """Behind a row program too, which has a part of the memory."""
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "traits", replace(device.traits, shared_memory_bytes=32768))
    monkeypatch.setenv("PTIR_VERIFY", "1")
    x, weight = normal(rows, inputs), normal(inputs, 40, seed=1)
    found = with_parameters(opencl, lambda x, w: F.linear(before(x), w, layout="io"), x, weight)
    close(found, expected(x.astype(np.float64)) @ weight, 2e-4)


def test_little_shared_memory_makes_tiles_smaller(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    types = (spec("f64", 70, 30), spec("f64", 30, 80))
    (wide,) = kernels(opencl, HEROES["matmul"][0], *types)
    monkeypatch.setattr(device, "traits", replace(device.traits, shared_memory_bytes=32768))
    (narrow,) = kernels(opencl, HEROES["matmul"][0], *types)
    assert wide.shared_bytes > 32768 >= narrow.shared_bytes


def test_attention_that_does_not_fit_is_serial_and_says_so(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "traits", replace(device.traits, shared_memory_bytes=1024))
    function, types = HEROES["attention"]
    assert [kernel.workgroup_size for kernel in kernels(opencl, function, *types)] == [1]


def test_a_prompt_of_small_heads_longer_than_a_block_of_keys(opencl: Target) -> None:
    """32 keys by 16 places are one turn for 128 members (see ``Workgroup.distribute``)."""
    q, k = normal(1, 1, 37, 16), normal(1, 1, 40, 16, seed=1)
    rows = np.array([0], np.int32), np.array([37], np.int32)
    found = run(opencl, lambda q, k, s, n: F.attention(q, k, k, start=s, length=n), q, k, *rows)
    close(found, attention(q, k, k, *rows), 1e-5)


@pytest.mark.slice(2)
@pytest.mark.parametrize("size", [1, 4, 5, 509, 512])
def test_maps_of_whole_and_broken_runs(opencl: Target, size: int) -> None:
    x, y = normal(3, size), normal(size, seed=1)
    close(run(opencl, lambda x, y: F.exp(x) * y, x, y), np.exp(x) * y, 1e-6)
    close(
        run(opencl, lambda x: x[:, 1:] * 2.0, normal(3, size + 1)), normal(3, size + 1)[:, 1:] * 2
    )


def test_explain_names_the_schedule_of_each_kernel(
    opencl: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "demo", "--backend", "opencl", "--json"]) == 0
    text = capsys.readouterr().out
    assert '"schedule": "coop"' in text
    assert '"schedule": "serial"' not in text
    assert main(["explain", "demo", "--backend", "opencl"]) == 0
    assert "attention coop" in capsys.readouterr().out
