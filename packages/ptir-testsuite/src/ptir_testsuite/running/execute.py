"""Running one case on a target, phase by phase, with the outcome that it earns.

Inputs are built and results compared on the host. Every case runs twice, each time in other poison,
and must give the same bits; host arrays with their bands, fences and uploaded handles must be what
they were.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ptir.backend import Options, Target
from ptir.backend.contract import Executable
from ptir.backend.interpreter import query_of
from ptir.errors import UnsupportedError
from ptir.ir.program import Program
from ptir.ops import OPS
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir.types import TensorType
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.corpus.layouts import LAYOUTS, memory_of, scribble
from ptir_testsuite.corpus.profiles import names_of, profiles_of
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.again import again
from ptir_testsuite.running.downloads import difference, odd_form, taken_twice
from ptir_testsuite.running.fences import PATTERNS, Fences, soil
from ptir_testsuite.running.judge import judge
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.owners import ran_around, ran_itself, ran_nothing
from ptir_testsuite.running.raised import named, raised_at, told, trace

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What every case of a run shares: the target, the claimed profiles, what it is held to.

    ``imports`` are the modules that define ops beside the standard ones. ``at_once`` lets
    cases be compiled together, which is faster; users compile them one by one.
    """

    target: Target
    claims: frozenset[str]
    terms: Terms = field(default_factory=Terms)
    imports: tuple[str, ...] = ()
    at_once: bool = False

    def again(self, row: Row) -> str:
        """The command that runs the row again."""
        backend, device = self.target.backend, self.target.device
        claims = None if self.claims == backend.claimed(device) else self.claims
        name = f"{backend.name}:{device.index}"
        return again(row, name, claims, self.terms.relaxations, self.imports)


class Failed(Exception):  # noqa: N818  an outcome on its way into a row, never seen by callers
    """A phase that ended the case."""

    def __init__(self, outcome: Outcome, phase: str, message: str) -> None:
        super().__init__(message)
        self.outcome, self.phase, self.message = outcome, phase, message

    @property
    def trace(self) -> tuple[str, ...]:
        """Where the backend raised what this came from; nothing where it raised nothing."""
        cause = self.__cause__
        if isinstance(cause, Failed):
            return cause.trace
        return () if cause is None else trace(cause)

    @property
    def place(self) -> str:
        """The line of the backend's code that raised what this came from, or nothing."""
        cause = self.__cause__
        if isinstance(cause, Failed):
            return cause.place
        return "" if cause is None else raised_at(cause)

    def ended(self, row: Row, message: str) -> Row:
        """The row of what this ended, with ``message`` for a reader."""
        row = replace(row, outcome=self.outcome, phase=self.phase, message=message)
        facts = {**row.facts, "raised": self.place} if self.place else row.facts
        return replace(row, trace=self.trace, facts=facts)


def run_case(case: Case, setting: Setting) -> Row:
    """Run ``case`` and say what it came to."""
    profiles = profiles_of(OPS[case.op], names_of(case.dtypes))
    claimed = profiles <= setting.claims
    start = time.perf_counter()
    row = Row(
        case.id,
        case.op,
        case.call,
        case.dtypes,
        tuple(sorted(profiles)),
        Outcome.PASS,
        claimed=claimed,
    )
    way = _Way(None)
    try:
        way = _accepted(case, setting)
        row = replace(row, facts={"decomposed": True}) if way.around else row
        row = _attempted(case, setting, way, row)
    except Failed as failed:
        text = f"{failed.message}\n  case {case.id} ({case.origin})"
        row = failed.ended(row, text)
    if row.failed and (whose := _whose(case, setting, way)):
        row = replace(row, message=f"{row.message}\n{whose}")
    return replace(row, seconds=time.perf_counter() - start)


def _attempted(case: Case, setting: Setting, way: _Way, row: Row) -> Row:
    if way.program is None:
        return replace(row, outcome=Outcome.UNSUPPORTED, phase="compile", message=way.refusal)
    results = _results(case, way.program, setting)
    judgement = judge(case, results, setting.terms)
    if judgement.message:
        return replace(
            row,
            outcome=Outcome.MISMATCH,
            phase="compare",
            message=judgement.message,
            facts={**row.facts, **(judgement.facts or {})},
        )
    if way.refusal and not way.around:
        says = f"the capability predicate says {way.refusal!r}, and yet it runs"
        text = f"{case.call}: {says}; let refusal() take it, or compile() raise UnsupportedError"
        return replace(row, outcome=Outcome.UNEXPECTED_PASS, phase="compile", message=text)
    return replace(row, worst_ulp=judgement.worst_ulp, worst_share=judgement.worst_share)


def _whose(case: Case, setting: Setting, way: _Way) -> str:
    """The line that says whose a case's op is and what ran in its place, where it is needed."""
    if way.program is None:
        return ran_nothing(case)
    if not way.around:
        return ran_itself(case, setting.terms)
    ran = (instruction.op for instruction in way.program.main.instructions)
    return ran_around(case, ran, way.refusal)


# --- compile ---


@dataclass(frozen=True)
class _Way:
    """The program that is run for a case, None where nothing is, and why the op is refused."""

    program: Program | None
    refusal: str = ""
    around: bool = False
    """Whether core runs other ops than the case's own."""


def _accepted(case: Case, setting: Setting) -> _Way:
    """The program to run, or None and why there is none; a refusal comes from the predicate.

    A refused op that has a way around (a decomposition, a composite's lowering) is run that way,
    as core does. One without is compiled anyway: what works must be claimed. An op with regions is
    taken where all that they hold is taken, and what core runs beside them (a scan's slices).
    """
    backend, device = setting.target.backend, setting.target.device
    program = case.program
    query = query_of(program.main, program.main.instructions[0])
    refusal = _guarded("compile", case, lambda: backend.refusal(query, device))
    if refusal is None:
        has_regions = case.op != "composite" and bool(OPS[case.op].regions)
        return _legalized(case, setting, "") if has_regions else _Way(program)
    if not isinstance(refusal, str):
        text = f"refusal() gave {refusal!r}; it must give a reason (a string) or None"
        raise Failed(Outcome.ERROR, "compile", f"{case.call}: {text}")
    if has_way_around(case):
        return _legalized(case, setting, refusal)
    try:
        backend.compile(program, device, Options())
    except UnsupportedError:
        return _Way(None, refusal)
    except Exception as error:
        raise Failed(Outcome.WRONG_ERROR, "compile", _not_typed(case, error)) from error
    return _Way(program, refusal)


def options_of(case: Case) -> Options:
    """How the case's program is compiled."""
    aliases = (tuple(range(len(case.operands))),) if case.form == "one buffer" else ()
    return Options(aliases=aliases)


def has_way_around(case: Case) -> bool:
    """Whether core runs the op by others where a backend refuses it."""
    return OPS[case.op].decomposition is not None or case.op == "composite"


def _legalized(case: Case, setting: Setting, refusal: str) -> _Way:
    """What core makes of the case; where the backend refuses that too, nothing and why."""
    context = PassContext(setting.target.backend, setting.target.device)
    try:
        made = legalize(case.program, context)
    except UnsupportedError as error:
        return _Way(None, f"{refusal}; its lowering: {error}" if refusal else str(error))
    except Exception as error:
        if not raised_at(error):  # neither the backend nor an op's author wrote that
            raise
        text = f"{case.call}: what runs in its place raised {named(error)} at {raised_at(error)}"
        raise Failed(Outcome.ERROR, "compile", text) from error
    return _Way(made, refusal, made != case.program)


def _not_typed(case: Case, error: Exception) -> str:
    return (
        f"{case.call}: refused by the capability predicate, compile raised {named(error)};"
        " it must raise UnsupportedError"
    )


# --- upload, execute, download ---


def _guarded(phase: str, case: Case, action: Callable[[], T]) -> T:
    """The action's value; its exceptions become the outcome ``error`` in ``phase``."""
    try:
        return action()
    except Exception as error:
        raise Failed(Outcome.ERROR, phase, f"{case.call}: {told(phase, error)}") from error


def _results(case: Case, program: Program, setting: Setting) -> list[Any]:
    backend, device = setting.target.backend, setting.target.device
    options = options_of(case)
    executable = _guarded("compile", case, lambda: backend.compile(program, device, options))
    arrays = [LAYOUTS[case.layout](a) for a in case.arrays[: len(program.inputs)]]
    handles = _lent(arrays, case, setting)
    _taken(case, handles, setting)
    for array in arrays:
        scribble(array)
    scribbled = _fingerprint(map(memory_of, arrays))
    _unchanged(case, "upload", handles, setting, "an upload shares the host's memory")
    fallbacks = backend.stats(device).host_fallback_ops
    first = _run(case, executable, handles, setting, PATTERNS[0])
    fallbacks = backend.stats(device).host_fallback_ops - fallbacks
    if fallbacks:
        text = f"{case.call}: {fallbacks} ops ran on the host, by the backend's own counters"
        raise Failed(Outcome.ERROR, "execute", text)
    _unchanged(case, "execute", handles, setting, "an input buffer was changed")
    second = _run(case, executable, handles, setting, PATTERNS[1], first)
    if _fingerprint(map(memory_of, arrays)) != scribbled:
        text = f"{case.call}: memory of the host was changed after it was uploaded"
        raise Failed(Outcome.MISMATCH, "execute", text)
    if _fingerprint(first) != _fingerprint(second):
        raise Failed(Outcome.MISMATCH, "execute", f"{case.call}: two runs gave different bits")
    return first


def _taken(case: Case, handles: Sequence[Any], setting: Setting) -> None:
    """Refuse handles that do not hold what was uploaded, and downloads that are no copies."""
    backend, device = setting.target.backend, setting.target.device
    for number, (handle, wanted) in enumerate(zip(handles, case.arrays, strict=False)):
        download = partial(backend.download, handle, device)
        given = partial(taken_twice, download, wanted.dtype)
        found, problem = _guarded("download", case, given)
        problem = problem or odd_form(found, wanted)
        where = f"operand {number} ({case.layout} host array)"
        if problem:
            raise Failed(Outcome.MISMATCH, "download", f"{case.call}: {problem}: {where}")
        off = difference(found, wanted)
        if off:
            text = f"{case.call}: {where} does not hold what was uploaded: {off}"
            raise Failed(Outcome.MISMATCH, "upload", text)


def _unchanged(
    case: Case, phase: str, handles: Sequence[Any], setting: Setting, message: str
) -> None:
    """Refuse handles whose elements are no longer those of the case."""
    backend, device = setting.target.backend, setting.target.device
    after = _guarded("download", case, lambda: [backend.download(h, device) for h in handles])
    for number, (found, wanted) in enumerate(zip(after, case.arrays, strict=False)):
        off = odd_form(found, wanted) or difference(found, wanted)
        if off:
            where = f"operand {number} ({case.layout} host array): {off}"
            raise Failed(Outcome.MISMATCH, phase, f"{case.call}: {message}: {where}")


def _lent(arrays: Sequence[Any], case: Case, setting: Setting) -> list[Any]:
    """Handles of the host arrays, which must stay as they are, the memory around them included."""
    before = _fingerprint(arrays), _fingerprint(map(memory_of, arrays))
    handles = _guarded("upload", case, lambda: _uploaded(arrays, case, setting))
    after = _fingerprint(arrays), _fingerprint(map(memory_of, arrays))
    if after != before:
        where = "a host array" if after[0] != before[0] else "memory beside a host array"
        text = f"{case.call}: upload changed {where} ({case.layout})"
        raise Failed(Outcome.MISMATCH, "upload", text)
    return handles


def _uploaded(arrays: Sequence[Any], case: Case, setting: Setting) -> list[Any]:
    backend, device = setting.target.backend, setting.target.device
    if case.form == "one buffer":
        return [backend.upload(arrays[0], device)] * len(arrays)
    return [backend.upload(a, device) for a in arrays]


def _run(
    case: Case,
    executable: Executable,
    handles: Sequence[Any],
    setting: Setting,
    pattern: int,
    before: Sequence[Any] = (),
) -> list[Any]:
    """The results of one run, whose memory held ``pattern`` before where it was used before.

    What was downloaded ``before`` must not become poison too.
    """
    backend, device = setting.target.backend, setting.target.device
    types = case.program.main.output_types
    downloaded = _fingerprint(before)
    fences = _guarded("upload", case, lambda: Fences(types, setting.target, pattern))
    if _fingerprint(before) != downloaded:
        text = f"{case.call}: a downloaded array is memory of the device: it changed afterwards"
        raise Failed(Outcome.MISMATCH, "download", text)

    def execute() -> Sequence[Any]:
        results = executable.run(handles)
        backend.synchronize(device)
        return results

    def download(result: Any, type: TensorType) -> Any:
        soil(type.nbytes, pattern)
        return backend.download(result, device)

    def downloads() -> list[Any]:
        pairs = zip(results, types, strict=True)
        return [taken_twice(partial(download, *pair), pair[1].dtype.numpy) for pair in pairs]

    results = _guarded("execute", case, execute)
    if len(results) != len(types):
        text = f"{case.call}: {len(results)} results; {len(types)} are wanted"
        raise Failed(Outcome.MISMATCH, "compare", text)
    found = []
    for number, (array, problem) in enumerate(_guarded("download", case, downloads)):
        if problem:
            text = f"{case.call}: {problem}: result {number}"
            raise Failed(Outcome.MISMATCH, "download", text)
        found.append(array)
    broken = _guarded("download", case, fences.broken)
    if broken:
        text = f"{case.call}: a tensor beside the results was overwritten: {broken}"
        raise Failed(Outcome.MISMATCH, "execute", text)
    return found


def _fingerprint(arrays: Iterable[Any]) -> list[Any]:
    """Dtype, shape and a digest of the elements, independent of how they lie in memory."""
    found = []
    for array in map(np.asarray, arrays):
        digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
        found.append((array.dtype, array.shape, digest))
    return found
