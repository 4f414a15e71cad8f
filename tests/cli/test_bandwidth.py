"""The probes of ``ptir bench``: which one measures a device, and that its runs are in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ptir_backend_ref
from ptir.backend.contract import Target
from ptir.cli import bandwidth

REF = Target(ptir_backend_ref.backend, ptir_backend_ref.backend.devices()[0])


def test_the_host_is_probed_where_it_computes(monkeypatch: Any) -> None:
    monkeypatch.setattr(bandwidth, "SIDE", 64)
    assert bandwidth.probe_of(REF) is bandwidth.read_bandwidth


def test_a_device_of_its_own_is_probed_itself() -> None:
    discrete = Target(REF.backend, replace(REF.device, kind="discrete"))
    ran: list[int] = []
    probe = bandwidth.DeviceProbe(discrete, side=32)
    run = probe._executable.run
    probe._executable.run = lambda inputs: (ran.append(id(inputs[0])), run(inputs))[1]
    assert probe.bandwidth() > 0
    assert len(ran) == bandwidth.REPEATS
    assert probe._nbytes == 2 * 4 * 32 * 32
