"""Elementwise numerics against independent witnesses: Python integers, fractions, mpmath, math.

Every binary op sees all pairs of the awkward values, every cast sees every pair of dtypes. Nothing
here computes an expected value with the code under test or with NumPy arithmetic.
"""

import itertools
import math
import operator
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest

from evaluation import awkward_values
from ptir.ops import numerics as xp
from ptir.types import DTYPES, F32, F64, dtype
from together import together

INF, NAN = math.inf, math.nan
TINY = 2.0**-149
LAST = float(np.finfo(np.float32).max)
AWKWARD = [INF, -INF, NAN, 0.0, -0.0, TINY, -TINY, 2.0**-126, 1.0, -1.0, 2.5, -0.5, LAST, -LAST]
FLOATS = ["f16", "bf16", "f32", "f64"]
INTEGERS = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]
FORMATS = {  # precision in bits, exponent of the smallest normal number, largest finite number
    "f16": (11, -14, 65504.0),
    "bf16": (8, -126, float.fromhex("0x1.fep127")),
    "f32": (24, -126, LAST),
    "f64": (53, -1022, float.fromhex("0x1.fffffffffffffp1023")),
}


def rounded(exact, name):
    """The float of a format nearest to a Fraction, halves to even; overflow to infinity."""
    precision, smallest, largest = FORMATS[name]
    magnitude = abs(exact)
    if magnitude == 0:
        return 0.0
    exponent = max(magnitude.numerator.bit_length() - magnitude.denominator.bit_length(), smallest)
    exponent -= exponent > smallest and magnitude < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - precision + 1)
    result = round(magnitude / unit) * unit
    value = INF if result > Fraction(largest) else float(result)
    return -value if exact < 0 else value


def wrap(value, name):
    """A Python integer reduced to the range of an integer dtype."""
    kind = DTYPES[name]
    value &= (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.kind == "int" and value >> (kind.bits - 1) else value


def limits(name):
    kind = DTYPES[name]
    low = -(1 << (kind.bits - 1)) if kind.kind == "int" else 0
    return low, low + (1 << kind.bits) - 1


def integers(name):
    low, high = limits(name)
    near = {
        low,
        low + 1,
        0,
        1,
        2,
        3,
        7,
        8,
        16,
        31,
        32,
        64,
        high // 2,
        high // 2 + 1,
        high - 1,
        high,
    }
    return sorted(near | ({-1, -2, -3, -7} if low else set()))


def alike(found, expected):
    """Equal with the sign of zero, any NaN equal to any other."""
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(found)
    return found == expected and (
        not isinstance(expected, float) or math.copysign(1, found) == math.copysign(1, expected)
    )


def check(function, witness, columns, name, result=None):
    """Compare ``function`` on whole columns with ``witness`` on each row of Python values."""
    arrays = [np.array(c, dtype=DTYPES[name].numpy) for c in columns]
    found = function(*arrays)
    assert found.dtype == (result or DTYPES[name]).numpy
    for row, got in zip(zip(*columns, strict=True), found.tolist(), strict=True):
        want = witness(*row)
        assert alike(got, want), (row, got, want)


def pairs(values):
    return [list(column) for column in zip(*itertools.product(values, repeat=2), strict=True)]


# --- floats: correctly rounded arithmetic ---


def ieee(operation, special):
    """The rounded result of an exact operation where all is finite, else ``special``."""

    def witness(a, b, element="f32"):
        if math.isfinite(a) and math.isfinite(b):
            exact = operation(Fraction(a), Fraction(b))
            if exact is not None and exact != 0:
                return rounded(exact, element)
        return special(a, b)

    return witness


def special_div(a, b):
    if b != 0:
        return a / b
    return NAN if a == 0 or math.isnan(a) else math.copysign(1, a) * math.copysign(INF, b)


def exact_div(a, b):
    return a / b if b else None


ARITHMETIC = {
    "add": ieee(operator.add, operator.add),
    "sub": ieee(operator.sub, operator.sub),
    "mul": ieee(operator.mul, operator.mul),
    "div": ieee(exact_div, special_div),
}


def awkward_floats(element):
    """Awkward values of a float dtype and some that do not divide evenly, as Python floats."""
    kind = DTYPES[element]
    more = [0.1, 3.0, 1 / 3, 1 + 2.0**-7, -(1 + 2.0**-10), 100.7]
    with np.errstate(all="ignore"):
        held = np.array([*awkward_values(kind), *more]).astype(kind.numpy)
    return [float(v) for v in held]


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_float_arithmetic_is_correctly_rounded_on_all_awkward_pairs(name, element):
    witness = partial(ARITHMETIC[name], element=element)
    check(getattr(xp, name), witness, pairs(awkward_floats(element)), element)


def float_maximum(a, b):
    if math.isnan(a) or math.isnan(b):
        return NAN
    return max((a, b), key=lambda v: (v, math.copysign(1, v)))


def float_minimum(a, b):
    if math.isnan(a) or math.isnan(b):
        return NAN
    return min((a, b), key=lambda v: (v, math.copysign(1, v)))


def float_rem(a, b):
    if math.isinf(a) or b == 0 or math.isnan(a) or math.isnan(b):
        return NAN
    return math.fmod(a, b)


@pytest.mark.parametrize(
    ("name", "witness"),
    [("maximum", float_maximum), ("minimum", float_minimum), ("rem", float_rem)],
)
@pytest.mark.parametrize("element", FLOATS)
def test_float_extremes_and_remainder_on_all_awkward_pairs(name, witness, element):
    check(getattr(xp, name), witness, pairs(awkward_floats(element)), element)


@pytest.mark.parametrize("element", FLOATS)
def test_clamp_is_minimum_of_maximum_on_all_awkward_triples(element):
    values = awkward_floats(element)[:16]
    triples = [list(c) for c in zip(*itertools.product(values, repeat=3), strict=True)]
    check(xp.clamp, lambda lo, x, hi: float_minimum(float_maximum(x, lo), hi), triples, element)


DIRECTIONS = ["eq", "ne", "lt", "le", "gt", "ge"]


@together("element")
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS, "bool"])
def test_compare_agrees_with_python_on_all_pairs(direction, element):
    kind = DTYPES[element]
    booleans = [False, True] if element == "bool" else None
    values = awkward_floats(element) if kind.is_float else booleans or integers(element)
    check(
        lambda a, b: xp.compare(a, b, direction=direction),
        getattr(operator, direction),
        pairs(values),
        element,
        DTYPES["bool"],
    )


def exact_unary(function):
    """``function`` of finite values; infinities and NaN give themselves."""
    return lambda x: math.copysign(float(function(x)), x) if math.isfinite(x) else x


UNARY = {
    "neg": lambda x: math.copysign(x, -math.copysign(1, x)),
    "abs": lambda x: math.copysign(x, 1),
    "sign": lambda x: x if x == 0 or math.isnan(x) else math.copysign(1.0, x),
    "floor": exact_unary(math.floor),
    "ceil": exact_unary(math.ceil),
    "round": exact_unary(round),
    "reciprocal": lambda x, element: ARITHMETIC["div"](1.0, x, element),
    "stop_gradient": lambda x: x,
}
HALVES = [*AWKWARD, 0.5, 1.5, -1.5, -2.5, 3.5, 0.49999997, 2.0**23 + 1, -(2.0**22) - 0.5]


@together("element")
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_exact_float_functions_on_awkward_values(name, element):
    with np.errstate(over="ignore"):
        halves = [float(v) for v in np.array(HALVES).astype(DTYPES[element].numpy)]
    witness = partial(UNARY[name], element=element) if name == "reciprocal" else UNARY[name]
    check(getattr(xp, name), witness, [[*halves, *awkward_floats(element)]], element)


@pytest.mark.parametrize("element", FLOATS)
def test_is_finite_on_awkward_values(element):
    check(xp.is_finite, math.isfinite, [awkward_floats(element)], element, DTYPES["bool"])


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", "rem"])
def test_narrow_arithmetic_of_random_bits_is_rounded_once(name, element):
    """What numbers in f64 give, rounded once by exact fractions, for random patterns."""
    bits = np.random.default_rng(11).integers(0, 2**16, (2, 3000)).astype(np.uint16)
    columns = [[float(v) for v in row.view(DTYPES[element].numpy)] for row in bits]
    witnesses = {"maximum": float_maximum, "minimum": float_minimum, "rem": float_rem}
    exact = ARITHMETIC.get(name)
    witness = partial(exact, element=element) if exact else witnesses[name]
    check(getattr(xp, name), witness, columns, element)


def test_select_takes_each_element_from_the_branch_its_predicate_names():
    on_true, on_false = pairs(AWKWARD)
    predicate = [index % 3 == 0 for index in range(len(on_true))]
    arrays = [np.array(c, np.float32) for c in (on_true, on_false)]
    found = xp.select(np.array(predicate), *arrays)
    for got, p, t, f in zip(found.tolist(), predicate, on_true, on_false, strict=True):
        assert alike(got, t if p else f)


# --- floats: functions rounded from f64 ---

mpmath.mp.prec = 200
INFINITE = {  # values at -inf and +inf, and where mpmath has no value
    "exp": (0.0, INF),
    "expm1": (-1.0, INF),
    "log": (NAN, INF),
    "log1p": (NAN, INF),
    "sqrt": (NAN, INF),
    "rsqrt": (NAN, 0.0),
    "sin": (NAN, NAN),
    "cos": (NAN, NAN),
    "tanh": (-1.0, 1.0),
    "erf": (-1.0, 1.0),
}
POLES = {"log": lambda x: x == 0, "log1p": lambda x: x == -1, "rsqrt": lambda x: x == 0}
BELOW = {"log": 0.0, "log1p": -1.0, "sqrt": 0.0, "rsqrt": 0.0}
ODD = ("expm1", "log1p", "sqrt", "sin", "tanh", "erf")


def true_value(name, x):
    """The function at x as an mpmath number, or a float where it is special."""
    if math.isnan(x) or x < BELOW.get(name, -INF):
        return NAN
    if math.isinf(x):
        return INFINITE[name][x > 0]
    if x == 0 and name in ODD:
        return x
    if name in POLES and POLES[name](x):
        return math.copysign(INF, x) if name == "rsqrt" else -INF
    if name == "rsqrt":
        return 1 / mpmath.sqrt(mpmath.mpf(x))
    return getattr(mpmath, name)(mpmath.mpf(x))


def fraction(number):
    """An mpmath number as a Fraction, exponents beyond any float's cut off."""
    sign, mantissa, exponent, _ = number._mpf_
    exponent = min(max(exponent, -5000), 5000)
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def sweep():
    spread = np.random.default_rng(7).integers(0, 2**32, 1500, dtype=np.uint32).view(np.float32)
    near = np.linspace(-12, 12, 801, dtype=np.float32)
    awkward = np.array([*AWKWARD, 0.46875, 4.0, 88.7, -103.9, 1e22, -0.9999999], np.float32)
    return [float(v) for v in np.concatenate([spread, near, awkward])]


@pytest.mark.parametrize("name", INFINITE)
def test_functions_are_the_nearest_f32_to_mpmath(name):
    def witness(x):
        value = true_value(name, x)
        return value if isinstance(value, float) else rounded(fraction(value), "f32")

    check(getattr(xp, name), witness, [sweep()], "f32")


@pytest.mark.parametrize("name", INFINITE)
def test_functions_are_within_two_units_of_mpmath_in_f64(name):
    """Tighter than what the records promise: the reference is to be the better one."""
    spread = np.random.default_rng(5).integers(0, 2**64, 1500, dtype=np.uint64).view(np.float64)
    fine = np.random.default_rng(6).uniform(-1.3, 1.3, 1500)
    values = [v for v in [*sweep(), *spread.tolist(), *fine.tolist()] if math.isfinite(v)]
    found = getattr(xp, name)(np.array(values, np.float64)).tolist()
    for x, got in zip(values, found, strict=True):
        want = true_value(name, x)
        if isinstance(want, float) or not math.isfinite(got):
            assert alike(got, float(want)), (x, got)
        else:
            unit = mpmath.mpf(math.ulp(float(want)))
            assert abs(mpmath.mpf(got) - want) <= 2 * unit, (x, got, want)


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("name", INFINITE)
def test_narrow_functions_round_once(name, element):
    bits = np.arange(0, 2**16, 37, dtype=np.uint16)
    values = [float(v) for v in bits.view(DTYPES[element].numpy)]

    def witness(x):
        value = true_value(name, x)
        return value if isinstance(value, float) else rounded(fraction(value), element)

    check(getattr(xp, name), witness, [values], element)


def float_pow(base, exponent, element="f32"):
    """IEEE 754 pow: Python's own rules for special values, mpmath for the rest."""
    special = base in (0, 1, INF, -INF) or exponent in (0, INF, -INF)
    if special or math.isnan(base) or math.isnan(exponent):
        return special_pow(base, exponent)
    if base < 0 and exponent != int(exponent):
        return NAN
    size = abs(exponent) * abs(math.log2(abs(base)))
    if size > 2500:
        grows = (abs(base) > 1) == (exponent > 0)
        odd = exponent == int(exponent) and int(exponent) % 2 == 1
        return math.copysign(INF if grows else 0.0, -1.0 if base < 0 and odd else 1.0)
    return rounded(fraction(mpmath.power(mpmath.mpf(base), mpmath.mpf(exponent)).real), element)


def special_pow(base, exponent):
    try:
        return math.pow(base, exponent)
    except ValueError:  # a zero to a negative power
        odd = exponent == int(exponent) and int(exponent) % 2 == 1
        return math.copysign(INF, base) if odd else INF


POWERS = [*AWKWARD, 2.0, -2.0, 3.0, -3.0, 0.5, 10.0, -10.0, 1.0000001192092896]


@pytest.mark.parametrize("element", ["f16", "bf16", "f32"])
def test_float_pow_on_all_awkward_pairs_is_the_nearest(element):
    with np.errstate(all="ignore"):
        held = np.array([*POWERS, *awkward_values(DTYPES[element])]).astype(DTYPES[element].numpy)
    values = [float(v) for v in held]
    check(xp.pow, partial(float_pow, element=element), pairs(values), element)


def test_f64_pow_is_within_two_units():
    rng = np.random.default_rng(8)
    near_one = 1 + rng.uniform(-1e-6, 1e-6, 500)
    bases = [*pairs(POWERS)[0], *near_one, *np.exp(rng.uniform(-9, 9, 500))]
    exponents = [*pairs(POWERS)[1], *rng.uniform(-6e8, 6e8, 500), *rng.uniform(-70, 70, 500)]
    found = xp.pow(np.array(bases), np.array(exponents)).tolist()
    for base, exponent, got in zip(bases, exponents, found, strict=True):
        want = float_pow(float(base), float(exponent), "f64")
        near = math.isfinite(want) and want != 0 and abs(got - want) <= 2 * math.ulp(want)
        assert near or alike(got, want), (base, exponent, got, want)


# --- integers ---


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def integer_pow(a, b):
    if b >= 0:
        return a**b if b < 64 else pow(a, b, 1 << 64)
    return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)


def shift_count(amount, name):
    return amount % (1 << DTYPES[name].bits)


def integer_witnesses(name):
    bits = DTYPES[name].bits
    return {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "div": lambda a, b: truncated(a, b) if b else -1,
        "rem": lambda a, b: a - b * truncated(a, b) if b else a,
        "pow": integer_pow,
        "maximum": max,
        "minimum": min,
        "and_": operator.and_,
        "or_": operator.or_,
        "xor": operator.xor,
        "shift_left": lambda a, n: a << min(shift_count(n, name), bits),
        "shift_right": lambda a, n: a >> min(shift_count(n, name), bits),
    }


@together("name")
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("op", integer_witnesses("i32"))
def test_integer_binary_ops_agree_with_python_integers_on_all_pairs(op, name):
    exact = integer_witnesses(name)[op]
    check(getattr(xp, op), lambda a, b: wrap(exact(a, b), name), pairs(integers(name)), name)


@together("name")
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    ("op", "exact"),
    [
        ("neg", operator.neg),
        ("abs", abs),
        ("not_", operator.invert),
        ("sign", lambda a: (a > 0) - (a < 0)),
    ],
)
def test_integer_unary_ops_agree_with_python_integers(op, exact, name):
    check(getattr(xp, op), lambda a: wrap(exact(a), name), [integers(name)], name)


@pytest.mark.parametrize(
    ("op", "exact"),
    [("and_", operator.and_), ("or_", operator.or_), ("xor", operator.xor)],
)
def test_logic_of_bools(op, exact):
    check(getattr(xp, op), exact, pairs([False, True]), "bool")
    check(xp.not_, operator.not_, [[False, True]], "bool")


# --- casts ---


def values_of(name):
    """Exact Python values of a dtype: awkward ones, and ones that other dtypes must round."""
    if name == "bool":
        return [False, True]
    if name in INTEGERS:
        low, high = limits(name)
        halfway = [2**k + d for k in (8, 9, 11, 24, 25, 53, 54, 62) for d in (-1, 0, 1, 3)]
        halfway += [257 << 30, (257 << 30) + 1, (257 << 54) + 1, (2**24 + 1) * 2**30 + 1]
        return integers(name) + [s * v for v in halfway for s in (1, -1) if low <= s * v <= high]
    ends = [float(e) * f for n in INTEGERS for e in limits(n) for f in (1, 0.999, 1.001)]
    ties = [s * (1 + k * 2.0**-b) for b in (8, 11, 24) for k in (1, 3) for s in (1, -1)]
    near = [
        s * (1 + 2.0**-b + e) for b in (8, 11) for s in (1, -1) for e in (2.0**-40, -(2.0**-40))
    ]
    small = [2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-133, 3 * 2.0**-134, 65519.0, 65520.0]
    tiny = [5e-324, 2.0**-150, 2.0**-150 * 1.0000001, LAST * (1 + 2.0**-25), 1e300, -1e300]
    values = [*AWKWARD, 0.99, -0.99, -1.75, 3.5, *ends, *ties, *near, *small, *tiny]
    if name == "f64":
        return values
    representable = (v if not math.isfinite(v) else rounded_zero(v, name) for v in values)
    return list(dict.fromkeys(map(repr, representable)))


def rounded_zero(value, name):
    return value if value == 0 else rounded(Fraction(value), name)


def cast_witness(source, target):
    """What a cast of one Python value gives, by DESIGN's rules and exact fractions."""
    kind = DTYPES[target]

    def to_integer(x):
        if not isinstance(x, float):
            return wrap(int(x), target)
        low, high = limits(target)
        if math.isnan(x):
            return 0
        return (low if x < 0 else high) if math.isinf(x) else min(max(int(x), low), high)

    def to_float(x):
        if isinstance(x, float) and (x == 0 or not math.isfinite(x)):
            return x
        return rounded(Fraction(x), target)

    if target == "bool":
        return lambda x: x != 0
    return to_float if kind.is_float else to_integer


EVERY = ["bool", *INTEGERS, *FLOATS]


@together("source")
@pytest.mark.parametrize("target", EVERY)
@pytest.mark.parametrize("source", EVERY)
def test_cast_agrees_with_exact_arithmetic(source, target):
    values = values_of(source)
    if source in ("f16", "bf16", "f32"):
        values = [float(text) for text in values]
    check(
        lambda x: xp.cast(x, dtype=dtype(target)),
        cast_witness(source, target),
        [values],
        source,
        DTYPES[target],
    )


@pytest.mark.parametrize("target", ["f8e4m3fn", "f8e5m2"])
def test_f64_to_f8_rounds_once(target):
    kind = DTYPES[target].numpy
    grid = sorted(float(v) for v in np.arange(128, dtype=np.uint8).view(kind) if np.isfinite(v))
    for low, high in itertools.pairwise(grid):
        middle = (low + high) / 2
        just = np.array([np.nextafter(middle, -INF), np.nextafter(middle, INF)])
        assert xp.cast(just, dtype=DTYPES[target]).tolist() == [low, high]


@pytest.mark.parametrize("target", ["f8e4m3fn", "f8e5m2"])
def test_f32_to_f8_is_as_ml_dtypes(target):
    values = np.array([*AWKWARD, 448.0, 464.0, 465.0, 57344.0, 61440.0, 0.3], np.float32)
    kind = DTYPES[target]
    found = xp.cast(values, dtype=kind).view(np.uint8)
    assert found.tolist() == values.astype(kind.numpy).view(np.uint8).tolist()


def test_bitcast_round_trips_every_f16_pattern_and_keeps_0d():
    bits = np.arange(2**16, dtype=np.uint16)
    halves = xp.bitcast(bits, dtype=DTYPES["bf16"])
    assert halves.dtype == DTYPES["bf16"].numpy
    assert xp.bitcast(halves, dtype=DTYPES["u16"]).tolist() == bits.tolist()
    scalar = xp.bitcast(np.array(1.0, np.float32), dtype=DTYPES["u32"])
    assert (scalar.shape, int(scalar)) == ((), 0x3F800000)


def test_results_do_not_alias_operands_that_casts_leave_alone():
    x = np.array([1.0, 2.0], np.float32)
    assert not np.shares_memory(xp.cast(x, dtype=F32), x)
    assert not np.shares_memory(xp.bitcast(x, dtype=DTYPES["i32"]), x)
    assert xp.cast(x, dtype=F64).tolist() == [1.0, 2.0]
