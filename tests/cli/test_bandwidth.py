"""The probes of ``ptir bench``: which one measures a device, and what each run touches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ptir_backend_ref
from ptir.backend.contract import Target
from ptir.cli import bandwidth

REF = Target(ptir_backend_ref.backend, ptir_backend_ref.backend.devices()[0])


def test_the_host_is_probed_where_it_computes(monkeypatch: Any) -> None:
    small = bandwidth.HostProbe(2, 1 << 16)
    monkeypatch.setattr(bandwidth, "host_probe", lambda: small)
    assert bandwidth.probe_of(REF) is small


def test_every_thread_reads_a_part_of_its_own_in_every_run(monkeypatch: Any) -> None:
    probe = bandwidth.HostProbe(3, 3 << 14)
    read: list[int] = []
    largest = np.max
    monkeypatch.setattr(np, "max", lambda part: (read.append(id(part)), largest(part))[1])
    assert probe.bandwidth() > 0
    assert sorted(read) == sorted(id(part) for part in probe._parts * bandwidth.REPEATS)
    assert len({part.ctypes.data for part in probe._parts}) == 3
    assert probe.kind == "3 threads reading 0 MB each"


def test_the_parts_of_many_threads_stay_larger_than_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bandwidth, "LEAST", 1 << 16)  # what it is takes seconds to fill 64 times
    assert bandwidth.HostProbe(64, 1 << 16)._each == 1 << 16


def test_a_device_of_its_own_is_probed_itself() -> None:
    discrete = Target(REF.backend, replace(REF.device, kind="discrete"))
    ran: list[int] = []
    probe = bandwidth.DeviceProbe(discrete, side=32)
    run = probe._executable.run
    probe._executable.run = lambda inputs: (ran.append(id(inputs[0])), run(inputs))[1]
    assert probe.bandwidth() > 0
    assert len(ran) == bandwidth.REPEATS
    assert probe._nbytes == 2 * 4 * 32 * 32
