"""The reference backend gives what records mean for every elementwise op in every dtype.

Plain NumPy stands in for some references, in place where memory may be reused: on all pairs of
awkward values both are the reference bit for bit.
"""

from __future__ import annotations

import numpy as np
import pytest

from comparing import assert_same, reference
from evaluation import awkward
from ptir.ir.attributes import Attributes
from ptir.ir.program import Instruction
from ptir.ops.record import OPS
from ptir.types import DTYPES, TensorType, dtype_of, spec
from ptir_backend_ref import backend
from together import together

DEVICE = backend.devices()[0]
ATTRIBUTES = {
    "compare": [{"direction": d} for d in ("eq", "ne", "lt", "le", "gt", "ge")],
    "cast": [{"dtype": d} for d in DTYPES.values()],
    "bitcast": [{"dtype": d} for d in DTYPES.values() if d.kind != "bool"],
}
CASES = [
    pytest.param(record, dtype, attributes, id=f"{name}-{dtype}-{number}")
    for name, record in OPS.items()
    if "elementwise" in record.traits
    for dtype in DTYPES.values()
    if dtype in record.dtypes[record.operands[-1]]
    for number, attributes in enumerate(ATTRIBUTES.get(name, [{}]))
    if name != "bitcast" or attributes["dtype"].bits == dtype.bits
]


def operands_of(record, dtype):
    types = [
        spec("bool" if record.dtypes[name] == {DTYPES["bool"]} else dtype, 16 ** len(record.dtypes))
        for name in record.operands
    ]
    return awkward(types)


@together("record")
@pytest.mark.parametrize(("record", "dtype", "attributes"), CASES)
def test_step_is_the_meaning(record, dtype, attributes):
    arrays = operands_of(record, dtype)
    types = [TensorType(dtype_of(a), a.shape) for a in arrays]
    bound = Attributes(record.bind(attributes))
    results = record.infer(types, bound)
    instruction = Instruction(record.name, tuple(range(len(arrays))), bound, results)
    with np.errstate(all="ignore"):
        wanted = reference(record, arrays, bound, ())
        for reusable in (frozenset(), *(frozenset({n}) for n in range(len(arrays)))):
            copies = [a.copy() for a in arrays]
            found = backend.prepare(instruction, DEVICE, reusable)(*copies)
            assert_same([found], wanted)
            for n, (copy, array) in enumerate(zip(copies, arrays, strict=True)):
                assert n in reusable or copy.tobytes() == array.tobytes()


@together("record")
@pytest.mark.parametrize(("record", "dtype", "attributes"), CASES)
def test_scalars_stay_arrays(record, dtype, attributes):
    arrays = [a[:1].reshape(()) for a in operands_of(record, dtype)]
    types = [TensorType(dtype_of(a), ()) for a in arrays]
    bound = Attributes(record.bind(attributes))
    results = record.infer(types, bound)
    instruction = Instruction(record.name, tuple(range(len(arrays))), bound, results)
    (found,) = backend.step(instruction, arrays, DEVICE)
    assert isinstance(found, np.ndarray)
    assert (dtype_of(found), found.shape) == (results[0].dtype, ())
