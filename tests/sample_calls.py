"""The samples of op records in other dtypes than their own."""

from __future__ import annotations

from collections.abc import Iterator

from ptir.errors import TypeRuleError
from ptir.ir.graph import freeze, inline, source
from ptir.ops import numerics as xp
from ptir.ops.record import OPS, literal
from ptir.types import dtype_of

FOR_ITS_OWN_DTYPE = {
    "width",
    "kind",
    "result dtype",
    "fit",
    "value",
    "dtypes",
    "match",
    "dtype",
    "predicate",
}
FOR_ITS_OWN_DTYPE |= {"condition", "inputs", "outputs", "same dtype"}
"""Labels of constraints that a sample in another dtype may break: a width, a kind, a target."""


def in_dtype(array, old, new):
    """The operand with its elements in another dtype, where they were of the old one."""
    return xp.cast(array, dtype=new) if dtype_of(array) == old else array


def retyped(region, old, new):
    """A region with one element type replaced by another throughout, or None where none fits."""
    inputs = [source(t.with_dtype(new) if t.dtype == old else t) for t in region.inputs]

    def again(instruction, operands):
        return OPS[instruction.op].multi(*operands, **instruction.attributes)

    try:
        return freeze(inline(region, inputs, again), inputs)
    except TypeRuleError:
        return None


def calls_in(record, dtype) -> Iterator[tuple]:
    """The samples of an op, with the dtype of one operand changed throughout."""
    for sample in record.samples:
        arrays = [a.numpy() for a in sample.operands]
        names = [record.operands[min(n, len(record.operands) - 1)] for n in range(len(arrays))]
        for name, array in zip(names, arrays, strict=True):
            if dtype not in record.dtypes[name]:
                continue
            old = dtype_of(array)
            changed = [in_dtype(a, old, dtype) for a in arrays]
            regions = tuple(retyped(region, old, dtype) for region in sample.regions)
            if None in regions:  # what happens in there is not for this dtype
                continue
            yield changed, sample.attributes, regions
        if not arrays and "dtype" in sample.attributes:
            yield [], {**sample.attributes, "dtype": dtype}, ()
        elif "value" in sample.attributes:
            value = xp.cast(sample.attributes["value"].numpy(), dtype=dtype)
            yield [], {"value": literal(value)}, ()
