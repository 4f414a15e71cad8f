"""Refusals as cases: every bad call of every record must be refused, and life must go on.

The builder and the verifier must both raise the labelled error with its message, before a backend
sees anything; afterwards the next valid program runs on the backend as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ptir.errors import PtirError, TypeRuleError, VerifyError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import source
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops import OPS
from ptir.ops.record import BadCall, Op
from ptir.ops.verify import verify
from ptir.types import parse_type
from ptir_testsuite.corpus.derivation import sample_cases
from ptir_testsuite.corpus.profiles import profiles_of
from ptir_testsuite.running.execute import Setting, run_case
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.owners import with_owners


@dataclass(frozen=True)
class Refusal:
    """One bad call of an op record, by its number there."""

    op: str
    number: int

    @property
    def call(self) -> BadCall:
        """The record's row."""
        return OPS[self.op].bad_calls[self.number]

    @cached_property
    def id(self) -> str:
        """The op's name, the constraint's label and a hash of the call."""
        call = self.call
        parts = (call.label, *call.operands, Attributes(call.attributes).text, call.message)
        state = hashlib.blake2b("\n".join(parts).encode(), digest_size=6)
        for region in call.regions:
            state.update(region.digest)
        return f"{self.op}-refusal-{state.hexdigest()}"

    @property
    def text(self) -> str:
        """The call for a reader."""
        attributes = Attributes(self.call.attributes).text
        return f"{self.op}({', '.join(self.call.operands)})" + (
            f" {{{attributes}}}" if attributes else ""
        )


def refusals(ops: Iterable[Op] | None = None) -> Iterator[Refusal]:
    """Every bad call of the ops (default: all that are defined)."""
    for op in OPS.values() if ops is None else ops:
        yield from (Refusal(op.name, number) for number in range(len(op.bad_calls)))


def run_refusal(refusal: Refusal, setting: Setting) -> Row:
    """Make the bad call in both ways, then run a valid program."""
    start = time.perf_counter()
    profiles = tuple(sorted(profiles_of(OPS[refusal.op], ())))
    claimed = set(profiles) <= setting.claims
    outcome, message = _refused(refusal)
    row = Row(refusal.id, refusal.op, refusal.text, (), profiles, outcome, claimed=claimed)
    row = replace(row, phase="verify" if message else "", message=message)
    row = with_owners(row, [refusal.op])  # its record refuses the call, and no backend
    if outcome is Outcome.PASS:
        row = _afterwards(refusal, setting, row)
    return replace(row, seconds=time.perf_counter() - start)


def _afterwards(refusal: Refusal, setting: Setting, row: Row) -> Row:
    """The row after the next valid program: the op's own sample, else one of a primitive.

    A backend on which no valid program runs has not shown that it survives a refusal.
    """
    primitives = (op for op in OPS.values() if op.decomposition is None and not op.regions)
    for op in (OPS[refusal.op], *primitives):
        case = next(sample_cases(op), None)
        found = run_case(case, setting) if case is not None else None
        if found is None or found.outcome is Outcome.UNSUPPORTED:
            continue
        if not found.failed:
            return row
        text = f"after a refused call, the next valid program fails: {found.message}"
        row = replace(row, outcome=found.outcome, phase=found.phase, message=text)
        return replace(row, trace=found.trace, facts=found.facts)
    text = f"{refusal.text}: refused, and no valid program runs afterwards"
    return replace(row, outcome=Outcome.UNSUPPORTED, phase="compile", message=text)


def _refused(refusal: Refusal) -> tuple[Outcome, str]:
    record, call = OPS[refusal.op], refusal.call
    operands = [source(parse_type(text)) for text in call.operands]
    try:
        record.multi(*operands, regions=call.regions, **call.attributes)
    except PtirError as error:
        problem = _wrong(error, refusal)
    except Exception as error:  # noqa: BLE001  what a rule raises by mistake is an outcome
        problem = f"{refusal.text}: {error.__class__.__name__}: {error}; TypeRuleError is wanted"
    else:
        return Outcome.ACCEPTED_INVALID, f"{refusal.text}: built, but it breaks {call.label!r}"
    if problem:
        return Outcome.WRONG_ERROR, problem
    return _refused_by_verifier(refusal)


def _wrong(error: PtirError, refusal: Refusal) -> str:
    call = refusal.call
    label = getattr(error, "label", None)
    if not isinstance(error, TypeRuleError) or label != call.label:
        return f"{refusal.text}: {error.__class__.__name__} labelled {label!r}: {error}"
    message = str(error).partition("\n")[0]
    if not message.endswith(call.message):
        return f"{refusal.text}: the message is {message!r}; it must end with {call.message!r}"
    return ""


def _refused_by_verifier(refusal: Refusal) -> tuple[Outcome, str]:
    call = refusal.call
    inputs = tuple(parse_type(text) for text in call.operands)
    numbers, attributes = tuple(range(len(inputs))), Attributes(call.attributes)
    result = parse_type("f32[]")
    instruction = Instruction(refusal.op, numbers, attributes, (result,), call.regions)
    block = Block(inputs, (instruction,), (len(inputs),))
    try:
        verify(Program(block, tuple(Port(f"x{i}") for i in numbers)))
    except VerifyError:
        return Outcome.PASS, ""
    except Exception as error:  # noqa: BLE001  what the verifier raises by mistake is an outcome
        text = f"{refusal.text}: the verifier raised {error.__class__.__name__}: {error}"
        return Outcome.WRONG_ERROR, text
    return Outcome.ACCEPTED_INVALID, f"{refusal.text}: the verifier accepts it"
