"""Schedules that overrides name: attention with split keys, where nobody would split them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl_runs import close, normal, run
from test_coop_schedules import kernels
from test_opencl_families import attention

import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.ops.overriding import active_overrides
from ptir.passes import PassContext, optimize
from ptir.switches import SCHEDULE
from ptir.types import spec

TYPES = spec("f32", 2, 4, 3, 24), spec("f32", 2, 2, 40, 24), spec("f32", 2, 2, 40, 24)


def call(q: Any, k: Any, v: Any) -> Any:
    return F.attention(q, k, v, causal=False)


def names(target: Target) -> list[str]:
    """The composites that the backend takes whole, under the overrides in force."""
    context = PassContext(target.backend, target.device, active_overrides())
    made = optimize(ptir.capture(call, *TYPES), context)
    return [one.name for one in made.main.instructions if one.op == "composite"]


def test_split_by_name_is_the_kernel_of_parts(opencl: Target) -> None:
    arrays = [normal(*type.shape, seed=n) for n, type in enumerate(TYPES)]
    wanted = attention(*arrays, np.zeros(2, "i4"), np.full(2, 40, "i4"), causal=False)
    assert names(opencl) == ["attention"]
    (alone,) = kernels(opencl, call, *TYPES)
    assert len(alone.launches) == 1
    with ptir.overrides("attention[T=3]=force=split"):
        assert names(opencl) == ["attention_split"]
        (split,) = kernels(opencl, call, *TYPES)
        assert len(split.launches) == 2
        close(run(opencl, call, *arrays), wanted, 1e-5)


def test_serial_kernels_split_nothing_and_compute_the_same_in_ops(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEDULE, "serial")
    with ptir.overrides(attention="force=split"):
        assert names(opencl) == []
