"""What a plan asks of a program."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ptir
import ptir_backend_ref
from ptir.backend.contract import Target
from ptir.capture.plan import plan_for
from ptir.errors import VerifyError
from ptir.ir.program import Port
from ptir.types import spec

REF = Target(ptir_backend_ref.backend, ptir_backend_ref.backend.devices()[0])


def test_an_input_behind_a_parameter_is_refused_by_name() -> None:
    """Runs hand over inputs, then parameters: in another order each would get the other's array."""
    program = ptir.capture(lambda w, x: w - x, spec("f32", 3), spec("f32", 3))
    given = replace(program, ports=(Port("w", "parameter"), Port("x")))
    with pytest.raises(VerifyError, match=r"input 'x' stands behind parameter 'w'.*in that order"):
        plan_for(given, REF)
    plan_for(replace(program, ports=(Port("w"), Port("x", "parameter"))), REF)
