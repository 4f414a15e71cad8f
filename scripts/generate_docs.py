"""Writes what is generated of docs/: ops, functionals, errors, accuracy, formats, rooms, models.

Run `python scripts/generate_docs.py` after adding an op, error or room; a test fails until then.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import models_page
import rooms
import weight_formats

from ptir import capture, errors, functional
from ptir.ir.attributes import Attributes, Literal
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops import OPS, Op, classes
from ptir.ops.classes import FLOAT, DTypeClass, listed
from ptir.ops.implementations import FUNCTIONALS, PORTABLE, Functional
from ptir.ops.profiles import PROFILES, primitives
from ptir.ops.record import REQUIRED, Array, Sample
from ptir.types import DTYPES, DType, parse_type
from ptir_testsuite.oracles import accuracy

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Written by scripts/generate_docs.py; edit the {table} instead. -->"

CLASSES = {
    getattr(classes, name): name.lower()
    for name in ("ANY", "COMMON", "NUMERIC", "FLOAT", "INTEGER", "INDEX", "BITS")
}
ACCURACY_INTRO = """
# Accuracy

How far a float result of an op may be off, on any backend. `ptir-conformance` holds every backend
to this table, which is read from the op records. Bool and integers are always exact. NaN,
infinities and zeros with their signs are compared before any tolerance.

- `exact`: every bit, any NaN for a NaN. `rounded`: the number nearest to the exact result.
- `ulp:N`: N units in the last place of the exact result. `rounded or ulp:N` is `rounded` for the
  ops that a backend lists in `correctly_rounded`.
- `dot`: sums in any order, as TOSA bounds them. With K roundings, unit roundoff u of the type that
  sums are made in (f32 for f16 and bf16) and S the sum of the terms' magnitudes, every element is
  within K u S / (1 - K u), then rounded to its dtype. Of {fewest} sums and more, errors in units of
  u S have a mean of at most {bias:g} sqrt(K / count) and a mean square of at most {squares:g} K. An
  element is left open where an order of summation may overflow on the way. Products are bounded
  likewise; max and min of the same ops are exact.
"""
RELAXED = """
A backend may be judged by another published column, chosen by name with `--relax NAME`; the report
names it. No backend is treated otherwise because of what it is called.
""".strip()
ROUNDED = """
Processors multiply bytes and bf16 faster than floats, by *dot instructions* that add several
products at once. The implementations below round activations so that these apply. They are never a
default: `--fast` (`load_model(fast=True)`) chooses the one for the format of the weights,
`--override linear=force=bf16`, `quantized_linear=force=int8` or `conv2d=force=int8` names it.
Backends without the instruction compute the same numbers from the lowering, at no gain; there, and
for formats that have no such implementation, `--fast` is an error that says so. Of a file that has
blocks and floats (a router of experts, an output) it takes the blocks; the rest stays exact, and a
warning names it.

Exact products use the dot product of bytes as well: the C backend and PoCL multiply weights of 1
to 8 bits by [int8 slices](../internals/codegen.md#int8-slices) that hold all 24 bits of an
activation. CUDA's tensor cores take three bf16 for an activation
([matrix instructions](../internals/codegen.md#matrix-instructions)).

- `linear`: `bf16`, for weights in bf16: activations rounded to bf16, half to even; products are
  exact, sums f32. Subnormal bf16 may count as 0.
- `quantized_linear`: `int8`, for weights in [words](../internals/weights.md#as-words), which are
  those of `--quant` and most blocks of files: activations in groups like the weights',
  scaled so that the greatest of a group is 127 in size, rounded half to even. Sums of a group are
  whole numbers and exact, sums of groups f32.

- `conv2d`: `int8`, for weights in floats, which are rounded when they are loaded, each output in
  127 steps of its greatest weight; not in groups. An image becomes bytes by its own range: 255
  steps from its least element to its greatest, or from and to 0, so that zero is a byte, which
  padding is made of. Half to even; sums are whole numbers and exact. `--fast` takes it for models
  of images whose other weights are whole numbers (`--quant`), from 16 outputs on; depthwise
  convolutions and others in groups stay as they are.

A group that holds NaN or infinity makes its row NaN; an image, or an output's weights, that hold
one make all their results NaN, and so does a range above 3.4e38. What rounding loses over whole
models is [measured](../results/rounding.md).
""".strip()
OPS_INTRO = """
# Ops

An op is a primitive with one definition, the same on every backend. These are the {count}, as their
records define them. Elements keep their dtype; nothing is promoted or broadcast here, the Tensor
API does both before it emits ops. Classes of element types (dtypes):

{classes}
**Accuracy** is what float results promise; bool and integers are always exact. `exact` and
`rounded` (the nearest float) leave no choice, `ulp:N` allows an error of N units in the last place,
`rounded or ulp:N` is rounded where the backend claims it, `dot` leaves the order of summation open.
The column holds for f32 and f64; f16 and bf16 are computed wider and rounded once, which makes
every `ulp:N` an `ulp:1`.

An op marked *yes* under decomposes is rewritten into simpler ops for a backend that refuses it; a
newcomer implements the {primitives} **core primitives**, marked *no*. A call belongs to the profile
of its op, and to one more for each dtype beyond bool, i32, u32 and f32:

| profile | what it takes |
|---|---|
{profiles}
Each sample below runs on the reference backend when this page is tested:

```python
from functools import partial
from math import inf, nan
import numpy as np
import ptir
from ptir.capture import call_multi, run_program
from ptir.ops.record import OPS, literal
from ptir.types import DTYPES

ref = ptir.backend("ref")

def array(dtype, values, shape=None):
    found = np.array(values, ptir.dtype(dtype).numpy)
    return found if shape is None else found.reshape(shape)

globals().update({{f"{{name}}_" if name == "bool" else name: partial(array, name)
                  for name in DTYPES}})

def check(name, *operands, gives, **attributes):
    tensors = [ptir.tensor(x, backend=ref) for x in operands]
    same(name, [r.numpy() for r in call_multi(name, *tensors, **attributes)], gives)

def check_program(name, text, *operands, gives):
    inputs = {{f"x{{i}}": x for i, x in enumerate(operands)}}
    same(name, run_program(ptir.parse(text), inputs, ref), gives)

def same(name, found, gives):
    gives = gives if isinstance(gives, tuple) else (gives,)
    for one, wanted in zip(found, gives, strict=True):
        assert (one.dtype, one.shape) == (wanted.dtype, wanted.shape)
        if OPS[name].accuracy in ("exact", "rounded"):
            np.testing.assert_array_equal(one, wanted)
        else:
            np.testing.assert_allclose(one.astype("f8"), wanted.astype("f8"), rtol=2e-6)
```
"""

OPS_END = """
The same from the command line, for one op or (with `--json`) for all:

```console
$ ptir ops reshape
```
"""

ERRORS_INTRO = """
# Errors

Everything ptir raises on purpose is a `ptir.PtirError` with a stable `code`. A command prints
`error [CODE]: message` and ends with the exit code; 0 is success. Messages name the thing, the
values, the rule and the next step. Backends and plugins raise these and nothing else.

| class | is a | code | exit code | meaning |
|---|---|---|---|---|
"""

ERRORS_END = """
Ctrl-C ends a command with 130.

```python
import ptir

try:
    ptir.capture(lambda x, w: x @ w, ptir.spec("f32", 2, 3), ptir.spec("f32", 4, 4))
except ptir.PtirError as error:
    assert (error.code, error.exit_code) == ("PTIR-101", 1)
    assert "dot_general(f32[2,3], f32[4,4]): contracting dims differ: 3 vs 4" in str(error)
```

To see one from the command line: `ptir ops sofmax` ends with 2 and the nearest names.

## What to do about an op that is refused

`PTIR-201` says which backend refuses which call, and why. Who wants to run it names another one
(`ptir backends` lists them). Whoever wrote a part of it does more:

- The backend: take the op, by `ops` or
  [`refusal`](../guides/write-a-backend.md#what-it-may-refuse), or claim its profile no more.
  `ptir-conformance support --backend NAME` lists what is taken and what is refused.
- The op, in a plugin: give it a [`decomposition`](../guides/add-an-op.md), by which every backend
  runs it.

```python
from ptir.errors import UnsupportedError
from ptir.ops.record import OPS

assert UnsupportedError.code == "PTIR-201"
assert OPS["reciprocal"].decomposition is not None  # no backend needs to know it
```

```console
$ python -c "from ptir.errors import PtirError; print(PtirError.code)"
PTIR-000
```
"""

FUNCTIONALS_INTRO = """
# Functionals

A functional is a function on tensors, written with [ops](ops.md). These {count} stay visible in
programs as *composites*, so that a backend may take them whole. Operands and attributes are
those of the composite, which is what a backend that takes it whole sees; an operand with a question
mark may be missing. Everything is f32 unless its section says otherwise.

| functional | operands | attributes | implementations |
|---|---|---|---|
"""

COMPOSITES_INTRO = """
## As a backend sees them

A backend that takes a composite whole gets one instruction, whose `op` is "composite". Operands
come in the order of this table, an optional one last, and absent where it was not given. Attributes
are the functional's `name`, which `OpQuery.name` and `instruction.name` read, and **every** one of
its own, also where it is None: what a caller left out is there with its default, or with what the
call fills in. Each row is a call that leaves out all that it may. Any operand may be a view
(broadcast, transposed, sliced) where the backend makes views of its own.

| composite | operands | attributes beside `name`; *f* is filled in from the call |
|---|---|---|
"""
PLAIN_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("f32[2,4,3,16] f32[2,2,7,16] f32[2,2,7,16]", {}),
    "avg_pool2d": ("f32[2,5,7,3]", {"window": (2, 3)}),
    "batch_norm": ("f32[2,3,3,5] f32[5] f32[5] f32[5] f32[5]", {}),
    "cache_update": ("f32[3,2,6,4] f32[3,2,3,4] i32[3] i32[3]", {}),
    "causal_conv1d": ("f32[2,5,6] f32[6,4] f32[2,3,6] i32[2]", {}),
    "conv2d": ("f32[2,7,5,3] f32[3,2,3,4]", {}),
    "embedding": ("f32[7,5] i32[2,3]", {}),
    "expert_linear": ("f32[3,33] f32[34,33] i32[3,1]", {"experts": 2}),
    "gated_delta_rule": (
        "f32[2,2,5,8] f32[2,2,5,8] f32[2,4,5,3] f32[2,4,5] f32[2,4,5] f32[2,4,8,3] i32[2]",
        {},
    ),
    "gated_linear_attention": (
        "f32[2,2,5,8] f32[2,2,5,8] f32[2,4,5,3] f32[2,4,5] f32[2,4,8,3] i32[2]",
        {},
    ),
    "gelu": ("f32[7,33]", {}),
    "layer_norm": ("f32[5,33] f32[33] f32[33]", {}),
    "linear": ("f32[3,33] f32[33,17]", {}),
    "max_pool2d": ("f32[2,5,7,3]", {"window": (2, 3)}),
    "quantized_expert_linear": (
        "f32[3,24] u32[10,3] f32[10,3] f32[10,3] i32[3,1]",
        {"experts": 2, "bits": 4, "group": 8},
    ),
    "quantized_linear": (
        "f32[3,24] u32[5,3] f32[5,3] f32[5,3]",
        {"bits": 4, "group": 8},
    ),
    "rms_norm": ("f32[5,33] f32[33]", {"epsilon": 1e-6}),
    "rope": ("f32[2,3,4,8] i32[2,4]", {}),
    "sample": ("f32[2,9] f32[2] i32[2] f32[2] f32[2] f32[2]", {}),
    "silu": ("f32[3,65]", {}),
    "softmax": ("f32[5,33]", {}),
    "swiglu": ("f32[3,65] f32[3,65]", {}),
    "top_k": ("f32[3,65]", {"k": 4}),
}
"""For each functional a call with what it requires and nothing else."""

FUNCTIONALS_END = """
## Proof

Each section above is the function in `ptir.functional` that checks the call and records the
composite. The table as the command line has it, with the policy in force for each:

```console
$ ptir overrides --backend ref
functional ...
```
"""


def main() -> None:
    """Write every generated page."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """The text of every generated page by file name."""
    return {
        "reference/ops.md": ops_page(),
        "reference/functionals.md": functionals_page(),
        "reference/errors.md": errors_page(),
        "reference/accuracy.md": accuracy_page(),
        "reference/weight-formats.md": weight_formats.page(NOTE.format(table="records")),
        "internals/layout.md": layout_page(),
        "models.md": models_page.page(NOTE.format(table="measurements")),
    }


def layout_page() -> str:
    """The page of rooms as it stands, with the tables as ``rooms`` has them."""
    return rooms.with_tables((DOCS / "internals/layout.md").read_text(encoding="utf-8"))


def accuracy_page() -> str:
    """What every op's float results are held to, by dtype, and the named relaxations."""
    head = NOTE.format(
        table="op records and ptir_testsuite/oracles/accuracy.py"
    ) + ACCURACY_INTRO.format(bias=accuracy.BIAS, squares=accuracy.SQUARES, fewest=accuracy.FEWEST)
    floats = [d.name for d in DTYPES.values() if d.is_float]
    table = [f"| op | {' | '.join(floats)} |", f"|---|{'---|' * len(floats)}"]
    for name, row in accuracy.table(OPS.values()):
        table.append(f"| {name} | {' | '.join(row.get(dtype, '') for dtype in floats)} |")
    relaxed = [f"| `{r.name}` | {r.doc} |" for r in accuracy.RELAXATIONS.values()]
    lines = [
        *table,
        "",
        "## Relaxations",
        "",
        RELAXED,
        "",
        "| name | what it allows |",
        "|---|---|",
    ]
    rounded = ["", "## Dot implementations", "", ROUNDED]
    return "\n".join([head, *lines, *relaxed, *rounded, ""])


def errors_page() -> str:
    rows = "".join(_error_row(cls) for cls in _family(errors.PtirError))
    return NOTE.format(table="classes in ptir/errors.py") + ERRORS_INTRO + rows + ERRORS_END


def _family(cls: type[errors.PtirError]) -> Iterator[type[errors.PtirError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _family(child)


def _error_row(cls: type[errors.PtirError]) -> str:
    meaning = " ".join((inspect.getdoc(cls) or "").split())
    parent = cls.__base__.__name__ if cls.__base__ else ""
    return f"| `{cls.__name__}` | `{parent}` | {cls.code} | {cls.exit_code} | {meaning} |\n"


def ops_page() -> str:
    head = NOTE.format(table="records in ptir/ops") + OPS_INTRO.format(
        count=len(OPS),
        classes="".join(f"- **{name}**: {listed(members)}\n" for members, name in CLASSES.items()),
        primitives=len(primitives()),
        profiles="".join(f"| {name} | {meaning} |\n" for name, meaning in PROFILES.items()),
    )
    table = "| op | dtypes | accuracy | profile | decomposes |\n|---|---|---|---|---|\n"
    table += "".join(_op_row(one) for one in OPS.values())
    return head + "\n" + table + "".join(_section(one) for one in OPS.values()) + OPS_END


def _op_row(one: Op) -> str:
    classes = " / ".join(dict.fromkeys(_names(c) for c in one.dtypes.values())) or "-"
    decomposes = "yes" if one.decomposition else "no"
    cells = (f"[{one.name}](#{one.name})", classes, one.accuracy, one.profile, decomposes)
    return f"| {' | '.join(cells)} |\n"


def _names(members: DTypeClass) -> str:
    """A class by its name, which the page explains, or by its members."""
    return CLASSES.get(members, listed(members))


def _accuracy(one: Op) -> str:
    """The accuracy class of each float that the op computes."""
    members = [d for d in FLOAT if any(d in allowed for allowed in one.dtypes.values())]
    by_class: dict[str, list[str]] = {}
    for dtype in sorted(members, key=lambda d: list(DTYPES).index(d.name)):
        by_class.setdefault(one.accuracy_of(dtype), []).append(dtype.name)
    if len(by_class) < 2:
        return one.accuracy
    return "; ".join(f"{', '.join(names)}: {accuracy}" for accuracy, names in by_class.items())


def _section(one: Op) -> str:
    lines = [f"\n## {one.name}", ""]
    lines += [f"`{one.name}({', '.join(one.operands)})`", ""]
    lines += [inspect.cleandoc(one.doc).replace("``", "`"), ""]
    lines += [f"- `{operand}`: {_names(allowed)}" for operand, allowed in one.dtypes.items()]
    for a in one.attributes:
        default = "" if a.default is REQUIRED else f", default `{_value(a.default)}`"
        choices = f" ({', '.join(a.choices)})" if a.choices else ""
        lines.append(f"- attribute `{a.name}`: {a.doc}{choices}{default}")
    traits = ", ".join(sorted(one.traits)) or "none"
    decomposes = "; *decomposes*" if one.decomposition else ""
    lines += [f"- accuracy {_accuracy(one)}; traits: {traits}{decomposes}", ""]
    if not one.samples:
        lines.append("No sample: only the backend that owns the target can run one.")
        return "\n".join(lines) + "\n"
    return "\n".join([*lines, "```python", *_sample(one, one.samples[0]), "```"]) + "\n"


def _sample(one: Op, sample: Sample) -> list[str]:
    operands = [_array(a) for a in sample.operands]
    gives = [_array(a) for a in sample.gives]
    result = gives[0] if len(gives) == 1 else f"({', '.join(gives)})"
    if sample.regions:
        text = str(_program(one, sample)).strip()
        arguments = [f'"{one.name}", """{text}\n"""', *operands]
        return [f"check_program({', '.join(arguments)},", f"              gives={result})"]
    named = [f"{name}={_value(value)}" for name, value in sample.attributes.items()]
    arguments = [f'"{one.name}"', *operands, *named]
    return [f"check({', '.join(arguments)},", f"      gives={result})"]


def _program(one: Op, sample: Sample) -> Program:
    """The sample as a program: the only way to write an op with regions down."""
    types = tuple(a.type for a in sample.operands)
    attributes = Attributes(one.bind(sample.attributes))
    results = tuple(one.infer(types, attributes, sample.regions))
    count = len(types)
    alone = Instruction(one.name, tuple(range(count)), attributes, results, sample.regions)
    outputs = tuple(range(count, count + len(results)))
    return Program(Block(types, (alone,), outputs), tuple(Port(f"x{i}") for i in range(count)))


def _array(array: Array) -> str:
    function = "bool_" if array.dtype == "bool" else array.dtype
    shape = "" if array.shape is None else f", {array.shape}"
    return f"{function}({_value(array.values)}{shape})"


def _value(value: Any) -> str:
    """Python text for a sample's value; ``inf`` and ``nan`` are names of the page."""
    match value:
        case DType():
            return f'ptir.dtype("{value.name}")'
        case Literal():
            return f"literal({_array(Array(value.type.dtype.name, value.numpy().tolist()))})"
        case float() if math.isnan(value):
            return "nan"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case tuple():
            return f"({', '.join(map(_value, value))}{',' if len(value) == 1 else ''})"
        case str():
            return f'"{value}"'
        case _:
            return repr(value)


def functionals_page() -> str:
    found = sorted(FUNCTIONALS.values(), key=lambda one: one.name)
    head = NOTE.format(table="functions in ptir/functional")
    head += FUNCTIONALS_INTRO.format(count=len(found))
    rows = "".join(_functional_row(one) for one in found)
    composites = COMPOSITES_INTRO + "".join(map(_composite_row, found))
    return head + rows + composites + "".join(map(_functional_section, found)) + FUNCTIONALS_END


def _functional_row(one: Functional) -> str:
    parameters = parameters_of(one)
    operands = [
        f"`{p.name}`" + ("" if p.default is p.empty else "?")
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    attributes = [f"`{p.name}`" for p in parameters if p.kind is p.KEYWORD_ONLY]
    names = ", ".join(one.implementations)
    listed = f"{', '.join(operands)} | {', '.join(attributes) or '-'} | {names}"
    return f"| [{one.name}](#{one.name}) | {listed} |\n"


def parameters_of(one: Functional) -> list[inspect.Parameter]:
    """The composite's operands and, by keyword only, its attributes."""
    portable = inspect.unwrap(one.implementations[PORTABLE].lower)
    return list(inspect.signature(portable).parameters.values())


def plain_composite(one: Functional) -> Instruction:
    """What a call with nothing but what it requires is captured as."""
    program = _plain_program(one)
    (found,) = (i for i in program.main.instructions if i.op == "composite")
    return found


def _plain_program(one: Functional) -> Program:
    texts, required = PLAIN_CALLS[one.name]
    function = getattr(functional, one.name)
    return capture(lambda *x: function(*x, **required), *map(parse_type, texts.split()))


def _composite_row(one: Functional) -> str:
    program, found = _plain_program(one), plain_composite(one)
    given = inspect.signature(getattr(functional, one.name)).parameters
    required = PLAIN_CALLS[one.name][1]
    names = [p.name for p in parameters_of(one) if p.kind is p.POSITIONAL_OR_KEYWORD]
    types = [str(program.main.types[v]) for v in found.operands]
    operands = [f"`{name}` {type}" for name, type in zip(names, types, strict=False)]
    operands += [f"`{name}`?" for name in names[len(types) :]]
    attributes = [
        f"`{name} = {value!r}`" + ("" if _is_said(name, value, given, required) else " *f*")
        for name, value in found.attributes.items()
        if name != "name"
    ]
    return f"| {one.name} | {', '.join(operands)} | {', '.join(attributes) or '-'} |\n"


def _is_said(name: str, value: Any, given: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    """Whether an attribute is what the caller wrote, or the default that the signature shows."""
    if name in required:
        return bool(required[name] == value)
    return name in given and bool(given[name].default == value)


def _functional_section(one: Functional) -> str:
    function = getattr(functional, one.name)
    parameters = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=p.empty) for p in parameters]
    text = inspect.cleandoc(function.__doc__ or "").replace("``", "`")
    return f"\n## {one.name}\n\n`{one.name}{inspect.Signature(bare)}`: {one.doc}.\n\n{text}\n"


if __name__ == "__main__":
    main()
