"""What other people may rely on, a line each: public names with signatures, ops, commands, options.

The lines say nothing that differs between versions of Python or between two processes.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any, Final, ForwardRef

import click

from ptir.ops import OPS
from ptir.ops.record import REQUIRED
from ptir.types import DTYPES

MODULES: Final[dict[str, str]] = {
    "ptir.errors": "PtirError TypeRuleError CaptureError VerifyError UnsupportedError CompileError "
    "DeviceError OutOfMemory DeviceLost CheckpointError QuantizationError ImageError AudioError "
    "PluginError BackendUnavailable UsageError",
    "ptir.events": "Event ImplementationChosen PassRun",
    "ptir.types": "DType DTYPES TensorType dtype spec",
    "ptir.ir": "",
    "ptir.backend.contract": "API_VERSION Backend BackendPass Device DeviceKind Executable Feeds "
    "Finding MemoryStats OpQuery Options RunStats Target",
    "ptir.backend.explanation": "Access Explanation Part locations_of",
    "ptir.backend.folders": "cache_folder replace_file",
    "ptir.backend.kernel": "Dialect KernelDevice Language Traits",
    "ptir.backend.clike": "CLike recast_bits worded",
    "ptir.backend": "",
    "ptir.codegen": "KernelBackend",
    "ptir.codegen.api": "",
    "ptir.ops": "OPS numerics",
    "ptir.ops.record": "Array Attribute BadCall Op Sample bad define refusals sample",
    "ptir.ops.implementations": "Implementation",
    "ptir.ops.policies": "Override parse_override",
    "ptir.ops.overriding": "overrides",
    "ptir.rewrite.rule": "row type_of",
    "ptir.passes.pipeline": "plug_in",
    "ptir.functional.define": "composite functional implementation lowering",
    "ptir.functional": "",
    "ptir.nn": "",
    "ptir.models": "",
    "ptir.report": "",
    "ptir.trace": "",
    "ptir.plugins": "GROUP ModelModule hookimpl ptir_commands ptir_implementations ptir_models "
    "ptir_ops ptir_overrides ptir_passes ptir_trace_sinks",
    "ptir.runtime": "",
    "ptir": "",
    "ptir_testsuite.cli": "main",
}
"""Public modules, homes before those that repeat a name, and their names ("" for ``__all__``)."""

OPERATORS: Final = re.compile(
    "__(call|getitem|setitem|iter|len|contains|enter|exit|str|bool|int|float|array|index"
    "|abs|neg|pos|invert|eq|ne|lt|le|gt|ge|r?(add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor"
    "|[lr]shift))__"
)
"""The methods with two underscores that somebody uses: Python adds others, version by version."""


def lines() -> list[str]:
    """The whole surface, sorted."""
    found = {*_ops(), *_commands(), *_pytest_options()}
    homes = _homes()
    for module in MODULES:
        for name in names(module):
            found |= set(_named(f"{module}.{name}", _value(module, name), homes))
    return sorted(found)


def names(module: str) -> tuple[str, ...]:
    """The public names of one module."""
    return tuple(MODULES[module].split()) or tuple(importlib.import_module(module).__all__)


def _value(module: str, name: str) -> Any:
    """A public object; where a name is a room as well (``ptir.backend``), the room."""
    found, room = getattr(importlib.import_module(module), name), f"{module}.{name}"
    return sys.modules[room] if callable(sys.modules.get(room)) else found


def _homes() -> dict[int, str]:
    """The first name of each public class and function, by identity: a second one is an alias."""
    found = dict[int, str]()
    for module in MODULES:
        for name in names(module):
            value = _value(module, name)
            if isinstance(value, type | FunctionType):
                found.setdefault(id(value), f"{module}.{name}")
    return found


# ---------------------------------------------------------------------------------------- objects


def _named(name: str, value: Any, homes: dict[int, str]) -> Iterator[str]:
    if isinstance(value, ModuleType):
        # A room that can be called is a function too; one that cannot only gathers names.
        made = vars(type(value)).get("__call__")
        yield f"{name}{_signature(made, drop=1)}" if made else f"{name}: module"
    elif homes.get(id(value), name) != name:
        yield f"{name} = {homes[id(value)]}"
    elif isinstance(value, type):
        yield from _class(name, value, homes)
    elif isinstance(value, FunctionType) or hasattr(value, "__wrapped__"):
        yield f"{name}{_signature(value)}"
    else:
        yield f"{name} = {shown(value)}"


def _class(name: str, made: type, homes: dict[int, str]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in made.__bases__ if base is not object)
    named = hasattr(made, "_fields")
    constructor = made.__new__ if named else made.__init__  # type: ignore[misc]
    own = isinstance(constructor, FunctionType) and (named or _is_ours(constructor.__module__))
    yield f"{name}: class({bases}){_signature(constructor, drop=1) if own else ''}"
    for member, value in sorted(_members(made, homes).items()):
        yield from _member(f"{name}.{member}", value)


def _members(made: type, homes: dict[int, str]) -> dict[str, Any]:
    """What a class offers that none of its public bases does."""
    found = dict[str, Any]()
    for owner in reversed(made.__mro__):
        if not _is_ours(owner.__module__) or (owner is not made and id(owner) in homes):
            continue
        stated = {member: _Stated(text) for member, text in inspect.get_annotations(owner).items()}
        offered = {m: v for m, v in (stated | vars(owner)).items() if _offered(m, v)}
        found |= {m: _Stated(stated[m].type, v) if m in stated else v for m, v in offered.items()}
    fields = getattr(made, "__dataclass_fields__", getattr(made, "_fields", ()))
    return {member: value for member, value in found.items() if member not in fields}


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("ptir", "ptir_testsuite")


class _Stated:
    """An annotated attribute, with its value if it has one."""

    def __init__(self, type_: Any, value: Any = REQUIRED) -> None:
        self.type = type_
        self.value = None if isinstance(value, _Stated) else value


def _offered(member: str, value: Any) -> bool:
    if not member.startswith("_"):
        return True
    written = isinstance(value, FunctionType) and not value.__code__.co_filename.startswith("<")
    return written and OPERATORS.fullmatch(member) is not None


def _member(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, staticmethod | classmethod):
        yield f"{name}{_signature(value.__func__)}: {type(value).__name__}"
    elif isinstance(value, property | cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        yield f"{name}: property{_result(getter)}"
    elif isinstance(value, FunctionType):
        yield f"{name}{_signature(value)}"
    elif isinstance(value, _Stated):
        given = "" if value.value in (None, REQUIRED) else f" = {shown(value.value)}"
        yield f"{name}: {_annotation(value.type)}{given}"
    elif not hasattr(value, "__get__"):  # not a slot or another descriptor of Python's
        yield f"{name} = {shown(value)}"


# ------------------------------------------------------------------------------------- signatures


def _signature(function: Callable[..., Any], drop: int = 0) -> str:
    signature = inspect.signature(function)
    parameters = [_stated(p) for p in list(signature.parameters.values())[drop:]]
    plain = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"{plain}{_result(function)}"


def _stated(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter, its annotation and default printed by us."""
    given, default = parameter.annotation, parameter.default
    if parameter.name == "self":  # a method that a function made says what everybody knows
        given = parameter.empty
    if given is not parameter.empty:
        given = _Printed(_annotation(given))
    if default is not parameter.empty:
        default = _Printed(shown(default))
    return parameter.replace(annotation=given, default=default)


class _Printed:
    """A text that ``inspect`` prints as it stands."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _result(function: Any) -> str:
    given = inspect.signature(function).return_annotation
    return "" if given is inspect.Signature.empty else f" -> {_annotation(given)}"


def _annotation(given: Any) -> str:
    if isinstance(given, ForwardRef):  # of a named tuple
        given = given.__forward_arg__
    return given if isinstance(given, str) else inspect.formatannotation(given)


def shown(value: Any) -> str:
    """A value as one would write it; of what has no such form, what kind of thing it is."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(shown, value)))}}}"
    if isinstance(value, tuple):
        name = type(value).__name__ if hasattr(value, "_fields") else ""
        return f"{name}({', '.join(map(shown, value))})"
    if isinstance(value, dict):
        return "<dict>"  # a table: rows come and go
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, type | FunctionType):
        return value.__qualname__
    text = repr(value)
    return f"<{type(value).__name__}>" if " at 0x" in text or " object" in text else text


# ---------------------------------------------------------------------------------- ops, commands


def _ops() -> Iterator[str]:
    """The ops of core: those of plugins, and of tests in the same process, are not ours to tell."""
    yield from (f"dtype {name}" for name in DTYPES)
    for record in OPS.values():
        if record.reference.__module__.startswith("ptir.ops."):
            given = ", ".join([*record.operands, *map(_attribute, record.attributes)])
            yield f"op {record.name}({given})"
            if "elementwise" in record.traits:
                yield f"ptir.functional.{record.name}: op"


def _attribute(one: Any) -> str:
    return one.name if one.default is REQUIRED else f"{one.name}={shown(one.default)}"


def _commands() -> Iterator[str]:
    from ptir.cli.main import COMMANDS, group
    from ptir_testsuite.cli import group as conformance

    table = {row.name: importlib.import_module(row.module).command for row in COMMANDS}
    options = {name: set(map(_parameter, command.params)) for name, command in table.items()}
    shared = set.intersection(*options.values())
    yield from (f"$ ptir {option}" for option in map(_parameter, group.params))
    yield from (f"$ ptir COMMAND {option}" for option in shared)
    for name in table:
        yield f"$ ptir {name}"
        yield from (f"$ ptir {name} {option}" for option in options[name] - shared)
    for name, command in conformance.commands.items():
        yield f"$ ptir-conformance {name}"
        yield from (f"$ ptir-conformance {name} {p}" for p in map(_parameter, command.params))


def _parameter(given: click.Parameter) -> str:
    spelled = "/".join([*given.opts, *given.secondary_opts])
    default = given.default if isinstance(given.default, str | int | float) else None
    words = [
        spelled if isinstance(given, click.Option) else spelled.upper(),
        _kind(given),
        "required" if given.required else "",
        "..." if given.multiple or given.nargs == -1 else "",
        f"= {default}" if default else "",
    ]
    return " ".join(word for word in words if word)


def _kind(given: click.Parameter) -> str:
    kind = given.type
    if getattr(given, "is_flag", False):
        return "flag"
    if isinstance(kind, click.Choice):
        return f"[{'|'.join(map(str, kind.choices))}]"
    if isinstance(kind, click.IntRange | click.FloatRange):
        most = "" if kind.max is None else kind.max
        return f"{kind.name} {kind.min}..{most}"
    return kind.name


def _pytest_options() -> Iterator[str]:
    from ptir_testsuite import plugin

    found = list[str]()

    class Parser:
        def getgroup(self, *_: str) -> Parser:
            return self

        def addoption(self, name: str, *, default: Any = None, **_: Any) -> None:
            found.append(f"$ pytest -p ptir_testsuite.plugin {name} = {shown(default)}")

    plugin.pytest_addoption(Parser())  # type: ignore[arg-type]
    return iter(found)
