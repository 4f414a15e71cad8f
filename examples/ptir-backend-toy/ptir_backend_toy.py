"""The backend "toy" of ptir, which began as the core profile on NumPy."""

import math

import numpy as np
from ptir.backend import Interpreter


def power(x, y):
    inverse = x**y if x.dtype == "f4" else (abs(x) == 1) * x ** (y & 1)
    return np.where(y < 0, inverse, x ** np.maximum(y, 0))


def reduce(x, axes, kind):
    start = {"max": {"initial": -np.inf}, "min": {"initial": np.inf}}.get(kind, {})
    # Extremes in f64, where -0 comes below +0 by a step that rounding to f32 removes.
    x = x + np.copysign(1e-300, x, dtype=float) if start else x
    return getattr(np, kind)(x, axis=axes, **start)


def dot(x, y, lhs_contract, rhs_contract, lhs_batch, rhs_batch, dtype):
    shared = dict(zip(rhs_batch + rhs_contract, lhs_batch + lhs_contract))
    left, right = [*range(x.ndim)], [shared.get(j, x.ndim + j) for j in range(y.ndim)]
    return np.einsum(x, left, y, right, [*lhs_batch, *sorted({*left} ^ {*right})])


def scatter(x, indices, updates, axes, kind, batch):
    x, fold = x.copy(), {"max": "maximum", "min": "minimum"}.get(kind, kind)
    table = np.moveaxis(x, axes, range(batch, batch + len(axes)))
    for place in np.ndindex(indices.shape[:-1]):  # in order, one update after another
        at, new = (*place[:batch], *indices[place]), updates[place]
        if all(0 <= i < n for i, n in zip(at, table.shape)):
            table[at] = new if kind == "replace" else OPS[fold](table[at], new)
    return x


NUMPY = """add exp expm1 log log1p sin cos tanh sqrt floor reshape broadcast_to
round=rint mul=multiply and=bitwise_and or=bitwise_or xor=bitwise_xor select=where
shift_left=left_shift shift_right=right_shift arg_max=argmax"""
OPS = {word.split("=")[0]: getattr(np, word.split("=")[-1]) for word in NUMPY.split()}
OPS |= {"pow": power, "reduce": reduce, "erf": np.vectorize(math.erf, otypes="d")}
OPS |= {"dot_general": dot, "scatter_reduce": scatter, "cast": lambda x, dtype: x}
OPS |= {
    "div": lambda x, y: (
        x / y if x.dtype == "f4" else (x - np.fmod(x, y)) // y - (y == 0)
    ),
    "rem": lambda x, y: np.where(y == 0, x + np.fmod(x, y), np.fmod(x, y)),
    "maximum": lambda x, y: reduce([x, y], 0, "max"),
    "minimum": lambda x, y: reduce([x, y], 0, "min"),
    "bitcast": lambda x, dtype: x.view(dtype.numpy),
    "compare": lambda x, y, direction: getattr(x, f"__{direction}__")(y),
    "iota": lambda shape, dtype, axis: np.indices(shape)[axis],
    "take": lambda x, indices, axis: np.take(x, indices, axis, mode="clip"),
    "transpose": lambda x, permutation: np.transpose(x, permutation),
    "concat": lambda *operands, axis: np.concatenate(operands, axis),
    "slice": lambda x, starts, limits, strides: x[
        tuple(map(slice, starts, limits, strides or [1] * x.ndim))
    ],
}


class NumPyBackend(Interpreter):
    name = "toy"
    ops = OPS

    def upload(self, array, device, *, borrow=False):
        return np.array(array)

    download = upload

    @np.errstate(all="ignore")
    def step(self, instruction, operands, device):
        x = OPS[instruction.op](*operands, **instruction.attributes)
        dtype = instruction.types[0].dtype.numpy
        if x.dtype.kind == "f" and dtype.kind in "iu":  # saturate; NaN becomes 0
            ends = np.iinfo(dtype)
            x = np.nan_to_num(np.float64(x)).clip(ends.min, ends.max).astype("i8")
        return (np.array(x, dtype),)  # rounded once, or wrapped
