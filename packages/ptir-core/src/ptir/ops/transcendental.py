"""Functions of one operand that no float holds exactly: exponentials, logarithms, angles, erf."""

from __future__ import annotations

from math import inf, nan

from ptir.ops.classes import FLOAT
from ptir.ops.elementwise import bf16, f16, f32, f64, unary

unary(
    "exp",
    FLOAT,
    "e to the power of the operand.",
    (f32(-1.0, 0.0, 1.0, -104.0, 89.0), f32(0.36787944117144233, 1.0, 2.718281828459045, 0, inf)),
    (f32(-inf, inf, nan), f32(0.0, inf, nan)),
    (f64(-1.0, 0.0, 709.0, 710.0), f64(0.36787944117144233, 1.0, 8.218407461554972e307, inf)),
    (f16(-1.0, 1.0, 12.0), f16(0.367919921875, 2.71875, inf)),
    (bf16(-1.0, 1.0), bf16(0.3671875, 2.71875)),
    accuracy="ulp:3",
)
unary(
    "expm1",
    FLOAT,
    "exp(x) - 1 without cancellation near zero; keeps -0.",
    (f32(-1.0, -0.0, 1e-10, 1.0), f32(-0.6321205588285577, -0.0, 1e-10, 1.718281828459045)),
    (f32(-inf, inf, nan), f32(-1.0, inf, nan)),
    (f64(1e-20, -1.0), f64(1e-20, -0.6321205588285577)),
    (bf16(1e-10, -1.0), bf16(1e-10, -0.6328125)),
    accuracy="ulp:3",
)
unary(
    "log",
    FLOAT,
    "The natural logarithm: of either zero -inf, of negative numbers NaN.",
    (f32(0.5, 1.0, 10.0, -1.0), f32(-0.6931471805599453, 0.0, 2.302585092994046, nan)),
    (f32(0.0, -0.0, inf, nan), f32(-inf, -inf, inf, nan)),
    (f64(0.5, 5e-324), f64(-0.6931471805599453, -744.4400719213812)),
    (f16(0.5, 10.0), f16(-0.693359375, 2.302734375)),
    accuracy="ulp:4",
)
unary(
    "log1p",
    FLOAT,
    "log(1 + x) without cancellation near zero; keeps -0.",
    (f32(-0.5, -0.0, 1e-10, 1.0), f32(-0.6931471805599453, -0.0, 1e-10, 0.6931471805599453)),
    (f32(-1.0, -2.0, inf, nan), f32(-inf, nan, inf, nan)),
    (f64(1e-20, -0.5), f64(1e-20, -0.6931471805599453)),
    (bf16(1e-10, -0.5), bf16(1e-10, -0.69140625)),
    accuracy="ulp:2",
)
unary(
    "sin",
    FLOAT,
    "The sine of an angle in radians, reduced exactly however large; of infinities NaN.",
    (
        f32(-1.0, -0.0, 1.0, 1e22),
        f32(-0.8414709848078965, -0.0, 0.8414709848078965, -0.7340815352961015),
    ),
    (f32(-inf, inf, nan), f32(nan, nan, nan)),
    (f64(-1.0, 1e22), f64(-0.8414709848078965, -0.8522008497671888)),
    (f16(-1.0, 60000.0), f16(-0.84130859375, 0.95751953125)),
    accuracy="ulp:4",
)
unary(
    "cos",
    FLOAT,
    "The cosine of an angle in radians, reduced exactly however large; of infinities NaN.",
    (
        f32(-1.0, -0.0, 2.0, 1e22),
        f32(0.5403023058681398, 1.0, -0.4161468365471424, 0.679061337095051),
    ),
    (f32(-inf, inf, nan), f32(nan, nan, nan)),
    (f64(2.0, 1e22), f64(-0.4161468365471424, 0.5232147853951389)),
    (bf16(2.0, -1.0), bf16(-0.416015625, 0.5390625)),
    accuracy="ulp:4",
)
unary(
    "tanh",
    FLOAT,
    "The hyperbolic tangent; keeps -0.",
    (f32(-1.0, -0.0, 0.5, 20.0), f32(-0.7615941559557649, -0.0, 0.46211715726000973, 1.0)),
    (f32(-inf, inf, nan), f32(-1.0, 1.0, nan)),
    (f64(-1.0, 1e-20), f64(-0.7615941559557649, 1e-20)),
    (f16(-1.0, 0.5), f16(-0.76171875, 0.462158203125)),
    accuracy="ulp:5",
)
unary(
    "erf",
    FLOAT,
    "The error function 2/sqrt(pi) * integral of exp(-t*t) from 0 to x; keeps -0.",
    (f32(-1.0, -0.0, 0.25, 5.0), f32(-0.8427007929497149, -0.0, 0.2763263901682369, 1.0)),
    (f32(-inf, inf, nan), f32(-1.0, 1.0, nan)),
    (f64(-1.0, 0.25), f64(-0.8427007929497149, 0.2763263901682369)),
    (bf16(-1.0, 0.25), bf16(-0.84375, 0.275390625)),
    accuracy="ulp:16",
)
