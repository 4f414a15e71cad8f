"""``ptir ops``: the op set as a table, or everything there is to say about one op."""

from __future__ import annotations

import inspect
import re
from typing import Any

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.errors import UsageError, unknown_name
from ptir.ops import OPS, Op, op
from ptir.ops.classes import DTypeClass
from ptir.ops.record import REQUIRED, Array, Attribute, Sample
from ptir.types import DTYPES, DType


@click.command()
@click.argument("name", required=False)
@common_options
def command(common: CommonOptions, name: str | None) -> None:
    """List the ops, or explain the op called NAME with an example."""
    with session(common):  # plugins add ops
        if name and name not in OPS:
            raise UsageError(unknown_name("op", name, OPS))
        chosen = [op(name)] if name else list(OPS.values())
    if common.json:
        show.value([record(one) for one in chosen])
    elif name:
        show.text("\n".join(explanation(chosen[0])))
    else:
        show.table(("op", "profile", "meaning"), map(_row, chosen))


def record(one: Op) -> dict[str, Any]:
    """An op as ``--json`` prints it."""
    return {
        "name": one.name,
        "operands": list(one.operands),
        "attributes": [_attribute(a) for a in one.attributes],
        "dtypes": {operand: _names(c) for operand, c in one.dtypes.items()},
        "doc": inspect.cleandoc(one.doc),
    }


def _attribute(attribute: Attribute) -> dict[str, Any]:
    found: dict[str, Any] = {"name": attribute.name, "doc": attribute.doc}
    found["required"] = attribute.default is REQUIRED
    if not found["required"]:
        default = attribute.default
        found["default"] = default.name if isinstance(default, DType) else default
    if attribute.choices:
        found["choices"] = list(attribute.choices)
    return found


def _names(members: DTypeClass) -> list[str]:
    return [name for name, dtype in DTYPES.items() if dtype in members]


def _row(one: Op) -> tuple[str, ...]:
    attributes = f"; {', '.join(a.name for a in one.attributes)}" if one.attributes else ""
    call = f"{one.name}({', '.join(one.operands)}{attributes})"
    doc = " ".join(inspect.cleandoc(one.doc).split())
    return call, one.profile, re.split(r"(?<=[\w)`\]])[.:;]\s", doc)[0].rstrip(".")


def explanation(one: Op) -> list[str]:
    """The lines that explain an op: signature, doc, dtypes, attributes and a sample."""
    lines = [f"{one.name}({', '.join(one.operands)})", "", inspect.cleandoc(one.doc), ""]
    lines += [f"  {operand}: {', '.join(_names(c))}" for operand, c in one.dtypes.items()]
    lines += [f"  {a.name}{_default(a)}: {a.doc}{_choices(a)}" for a in one.attributes]
    traits = ", ".join(sorted(one.traits)) or "none"
    lines.append(f"  accuracy: {one.accuracy}; traits: {traits}; profile: {one.profile}")
    for sample in one.samples[:1]:
        lines += ["", *_sample(one, sample)]
    return lines


def _default(attribute: Attribute) -> str:
    return "" if attribute.default is REQUIRED else f" = {attribute.default!r}"


def _choices(attribute: Attribute) -> str:
    return f" (one of {', '.join(attribute.choices)})" if attribute.choices else ""


def _sample(one: Op, sample: Sample) -> list[str]:
    arguments = [_array(a) for a in sample.operands]
    arguments += [f"{name}={value!r}" for name, value in sample.attributes.items()]
    gives = ", ".join(_array(a) for a in sample.gives)
    return ["example:", f"  {one.name}({', '.join(arguments)})", f"  gives {gives}"]


def _array(array: Array) -> str:
    return f"{array.dtype} {array.values}"
