"""Rules from outside: checked when they are added, left out when they fail.

A rule is added when both sides of each of its samples have the same types and, unless it says that
it is inexact, give the same bits on awkward values, and when it comes to an end, alone and beside
the rules that are there.
"""

from __future__ import annotations

from typing import Any, Final

from ptir.errors import PluginError, PtirError
from ptir.ir.program import Block, Port, Program
from ptir.ops.verify import verify
from ptir.rewrite.engine import cause, rewrite
from ptir.rewrite.rule import AnyRule
from ptir.rewrite.rules import EXACT, FAST_MATH

PLUGGED_RULES: Final[dict[str, AnyRule]] = {}
"""The rules of plugins, by owner and name, in the order in which they were added."""

TURNS: Final = 16
"""As many inputs as there are awkward values: each operand begins with each of them."""


def plug_in_rule(owner: str, rule: AnyRule) -> None:
    """Have ``rule`` applied from now on; raises ``PluginError`` for one that is wrong."""
    names = [r.name for r in (*EXACT, *FAST_MATH, *PLUGGED_RULES.values())]
    if rule.name in names:
        raise PluginError(
            f"{rule.line}: rule {rule.name!r} of {owner}: there is one of this name; choose another"
        )
    check_rule(rule)
    PLUGGED_RULES[f"{owner}/{rule.name}"] = rule


def check_rule(rule: AnyRule) -> None:
    """Raise ``PluginError`` for a rule that changes what it is applied to, or never ends."""
    what = f"{rule.line}: rule {rule.name!r}"
    try:
        samples = list(rule.programs())
    except Exception as error:
        raise PluginError(f"{what}: a sample cannot be made: {cause(error)}") from error
    if not samples:
        raise PluginError(f"{what} has no sample; give types for which it fires")
    for sample in samples:
        after = _after(rule, sample)
        try:
            rewrite(sample, (rule, *EXACT), {})
        except PtirError as error:
            raise PluginError(f"{what} and the rules that are there have no end: {error}") from None
        if rule.exact:
            _compare(what, sample, after)


def _after(rule: AnyRule, sample: Block) -> Block:
    counts: dict[str, int] = {}
    try:
        after = rewrite(sample, (rule,), counts)
        ports = tuple(Port(f"p{i}") for i in range(len(after.inputs)))
        verify(Program(after, ports))
    except PtirError as error:
        raise PluginError(str(error)) from None
    if not counts:
        types = ", ".join(map(str, sample.inputs))
        raise PluginError(f"{rule.line}: rule {rule.name!r} does not fire on its sample of {types}")
    return after


def _compare(what: str, sample: Block, after: Block) -> None:
    import numpy as np

    from ptir.rewrite.awkward import awkward, evaluate, same_but_for_nan

    for turn in range(TURNS):
        arrays = awkward(sample.inputs, turn)
        with np.errstate(all="ignore"):
            wanted, found = evaluate(sample, arrays), evaluate(after, arrays)
        if not same_but_for_nan(found, wanted):
            raise PluginError(
                f"{what} changes a result: {_difference(arrays, wanted, found)};"
                " mark it exact=False, so that only --fast-math applies it, or correct it"
            )


def _difference(arrays: list[Any], wanted: Any, found: Any) -> str:
    """The first element that differs, and for which operands."""
    import numpy as np

    for one, other in zip(wanted, found, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{one.dtype}{list(one.shape)} becomes {other.dtype}{list(other.shape)}"
        kept = np.frombuffer(one.tobytes(), np.uint8).reshape(one.size, -1)
        changed = np.frombuffer(other.tobytes(), np.uint8).reshape(one.size, -1)
        for place in np.flatnonzero((kept != changed).any(axis=1)):
            a, b = one.flat[place], other.flat[place]
            if not (a != a and b != b):
                given = [x.flat[place] for x in arrays if x.size == one.size]
                operands = f" for {', '.join(map(str, given))}" if given else ""
                return f"{a} becomes {b}{operands}"
    return "a NaN becomes another"


def rules_in_force(*, fast_math: bool = False) -> tuple[AnyRule, ...]:
    """The rules that passes apply: ours and those of plugins; inexact ones where asked for."""
    added = [rule for rule in PLUGGED_RULES.values() if rule.exact or fast_math]
    if not added and not fast_math:
        return EXACT
    return (*EXACT, *(FAST_MATH if fast_math else ()), *added)


def leave_out(rule: AnyRule) -> str | None:
    """Drop a rule of a plugin that failed; its owner, or None where the rule is ours."""
    for key, known in PLUGGED_RULES.items():
        if known is rule:
            del PLUGGED_RULES[key]
            return key.partition("/")[0]
    return None
