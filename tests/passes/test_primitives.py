"""A backend of nothing but the primitives runs every sample of every op through legalize."""

from __future__ import annotations

import numpy as np
import pytest

from comparing import assert_same, assert_within
from ptir.backend.contract import Options
from ptir.errors import UnsupportedError
from ptir.ir.graph import freeze, source
from ptir.ir.program import Port, Program
from ptir.ir.structure import blocks
from ptir.ops import OPS, numerics
from ptir.ops.verify import verify
from ptir.passes import PassContext
from ptir.passes.legalize import legalize
from tiny_backend import ONE, TinyBackend
from together import together

SAMPLES = [
    pytest.param(record, example, id=f"{name}-{number}")
    for name, record in OPS.items()
    for number, example in enumerate(record.samples)
]


class PrimitiveBackend(TinyBackend):
    """Refuses every op that has a decomposition, and every composite."""

    name = "primitive"

    def refusal(self, query, device):
        if query.is_composite:
            return "composites are lowered"
        return "not a primitive" if OPS[query.op].decomposition is not None else None

    def step(self, instruction, operands, device):
        reference = OPS[instruction.op].reference
        with np.errstate(all="ignore"):
            results = reference(numerics, *operands, **instruction.attributes)
        return results if isinstance(results, tuple) else (results,)


BACKEND = PrimitiveBackend()
DEVICE = ONE[0]


def program(record, example):
    inputs = [source(a.type) for a in example.operands]
    results = record.multi(*inputs, regions=example.regions, **example.attributes)
    ports = tuple(Port(f"p{number}") for number in range(len(inputs)))
    return Program(freeze(list(results), inputs), ports)


@together("record")
@pytest.mark.parametrize(("record", "example"), SAMPLES)
def test_sample_on_primitives_alone(record, example):
    lowered = legalize(program(record, example), PassContext(BACKEND, DEVICE))
    verify(lowered)
    left = {i.op for _, block in blocks(lowered) for i in block.instructions}
    assert all(OPS[name].decomposition is None and name != "composite" for name in left), left
    bound = BACKEND.compile(lowered, DEVICE, Options())
    handles = [BACKEND.upload(a.numpy(), DEVICE) for a in example.operands]
    found = [BACKEND.download(handle, DEVICE) for handle in bound.run(handles)]
    wanted = [a.numpy() for a in example.gives]
    if record.name in ("rsqrt", "cumulative"):  # the two that are not exact, and no further off
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), rtol=2.0**-8)
    elif record.accuracy.startswith("ulp"):
        assert_within(record, found, wanted)
    else:
        assert_same(found, wanted)


@together()
@pytest.mark.parametrize("name", [name for name, record in OPS.items() if record.samples])
def test_refusing_any_one_op_ends_in_other_ops_or_in_an_error(name):
    class Refuses(TinyBackend):
        def refusal(self, query, device):
            refused = query.is_composite or query.op == name
            return f"no {name}" if refused else None

    for record in OPS.values():
        for example in record.samples:
            try:
                lowered = legalize(program(record, example), PassContext(Refuses(), DEVICE))
            except UnsupportedError as error:
                assert OPS[name].decomposition is None
                assert f"no {name}" in str(error)
                continue
            used = {i.op for i in lowered.main.instructions}
            assert name not in used
