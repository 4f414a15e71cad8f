"""The reference backend for every test here, and a count of the work that it is given."""

from __future__ import annotations

import pytest

from ptir import events
from ptir.backend import Target
from ptir.capture.plan import PLANS


@pytest.fixture(autouse=True)
def reference(monkeypatch):
    """Tensors without a backend of their own go to the reference backend."""
    import ptir_backend_ref

    target = Target(ptir_backend_ref.backend, ptir_backend_ref.backend.devices()[0])
    monkeypatch.setattr("ptir.capture.lazy._best", lambda: target)
    monkeypatch.delenv("PTIR_BACKEND", raising=False)
    monkeypatch.delenv("PTIR_EAGER", raising=False)
    PLANS.clear()
    return target


@pytest.fixture
def runs():
    """Every program that was run while the test ran, in order."""
    seen = []
    remove = events.subscribe(
        lambda event: seen.append(event.program) if isinstance(event, events.ProgramRun) else None
    )
    yield seen
    remove()
