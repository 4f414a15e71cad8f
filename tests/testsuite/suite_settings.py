"""What the suite's tests hold backends to."""

from __future__ import annotations

from ptir.backend import Target
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.execute import Setting


def setting_of(backend, **terms):
    """A backend held to everything that it claims."""
    target = Target(backend, backend.devices()[0])
    return Setting(target, backend.claims, Terms(backend.correctly_rounded, **terms))
