"""Chooses the fastest implementation of a call by running all that apply on the device itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ptir.backend.code_state import code_states
from ptir.backend.contract import OpQuery
from ptir.backend.disk_cache import digest_key
from ptir.errors import PluginError, UnsupportedError
from ptir.ir.attributes import Attributes
from ptir.ir.program import Program
from ptir.ops.implementations import FUNCTIONALS
from ptir.passes import timing
from ptir.passes.context import PassContext
from ptir.passes.remembered import Seconds, TuningRecord, remember, remembered

Timer: TypeAlias = Callable[
    [Mapping[str, Program], PassContext], tuple[dict[str, list[float]], dict[str, str]]
]
"""``timing.run_times``, or what a test puts in its place."""


@dataclass(frozen=True)
class TimedCall:
    """A call that is timed: its types and attributes, and which operands are parameters."""

    query: OpQuery
    stored: tuple[bool, ...]

    @property
    def text(self) -> str:
        """The class of the call, as it is remembered: sizes up to the next power of two."""
        found = FUNCTIONALS.get(self.query.name)
        types, attributes = self.query.operands, self.query.attributes
        if found is None or not found.shapes.names:
            shown = [*map(str, types)]
        else:
            sizes = found.shapes.sizes(types, attributes)
            shown = [f"{name}{_up_to(size)}" for name, size in sizes.items()]
            shown += ["dtypes=" + ",".join(type.dtype.name for type in types)]
        parameters = [str(number) for number, stored in enumerate(self.stored) if stored]
        shown += ["parameters=" + ",".join(parameters)] if parameters else []
        own = Attributes({key: value for key, value in attributes.items() if key != "name"})
        return f"({' '.join(shown)}) {{{own.text}}}"


def _up_to(size: int) -> str:
    """A size's class: itself where it is small, else all above half of a power of two."""
    return f"={size}" if size <= SMALL else f"<={1 << (size - 1).bit_length()}"


SMALL = 2
"""Sizes that are classes of their own: one row is not two."""


def kernel_version(context: PassContext) -> str:
    """What a measurement holds for: the kernels and the device that they are written for.

    Of a backend that does not say, the state of its code.
    """
    backend = context.backend
    identity = backend.cache_identity(context.device)
    states = code_states(type(backend)) or [] if identity is None else [identity]
    return digest_key(*states)[:16]


def known_choice(
    call: TimedCall, names: Sequence[str], default: str, context: PassContext
) -> str | None:
    """What of ``names`` was found to be faster than ``default`` before, or None."""
    key = _key(call, context)
    record = next((record for record in remembered() if record.key == key), None)
    found = None if record is None else _faster(record, default)
    return found if found in names else None


def _faster(record: TuningRecord, default: str) -> str | None:
    """What was faster than ``default`` beyond the spread; it may have been another one then."""
    if default == record.default or default not in record.seconds:
        return record.implementation if record.decided else None
    best, decided = decision(record.seconds, default)
    return best if decided else None


def _key(call: TimedCall, context: PassContext) -> tuple[str, str, str, str, str]:
    backend, device = context.backend.name, context.device.name
    return (call.query.name, call.text, backend, device, kernel_version(context))


def fastest(
    call: TimedCall,
    candidates: Mapping[str, Callable[[], Program]],
    default: str,
    context: PassContext,
    limit: int,
    timer: Timer | None = None,
) -> str:
    """The name of the fastest of ``candidates``; remembered if timed before, else timed now.

    That is ``default`` unless another is faster beyond the spread: half of its rounds take less
    than half of the default's. A candidate makes its program when asked, or raises
    ``UnsupportedError`` and does not count; nor does one that fails (``PluginError``), which a
    warning tells. At most ``limit`` records are kept for each functional, the newest ones. Raises
    ``UnsupportedError`` where nothing applies.
    """
    key = _key(call, context)
    known = next((record for record in remembered() if record.key == key), None)
    if known is not None and known.seconds.keys() | {*known.refused} == candidates.keys():
        return _faster(known, default) or (default if default in known.seconds else known.default)
    programs, refusals = _applying(candidates)
    times, failed = (timer or timing.run_times)(programs, context)
    refusals |= failed
    if not times:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise UnsupportedError(
            f"{call.query.name}: no implementation applies: {reasons}; drop the override, or choose"
            " another backend (see `ptir backends`)"
        )
    seconds = {name: spread(rounds) for name, rounds in times.items()}
    default = default if default in seconds else next(iter(seconds))
    best, decided = decision(seconds, default)
    made = TuningRecord(*key, best, default, decided, seconds, tuple(sorted(refusals)))
    remember(made, limit)
    return best


def _applying(
    candidates: Mapping[str, Callable[[], Program]],
) -> tuple[dict[str, Program], dict[str, str]]:
    programs: dict[str, Program] = {}
    refusals: dict[str, str] = {}
    for name, make in candidates.items():
        try:
            programs[name] = make()
        except UnsupportedError as error:
            refusals[name] = str(error)
        except PluginError as error:
            refusals[name] = str(error)
            warnings.warn(f"{error}; it is not timed", RuntimeWarning, stacklevel=2)
    return programs, refusals


def spread(rounds: Sequence[float]) -> Seconds:
    """The median of rounds with the quarters around it."""
    if len(rounds) < 2:
        return Seconds(rounds[0], rounds[0], rounds[0])
    import statistics  # its imports (decimal, fractions) take longer than all of this module's

    low, median, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return Seconds(low, median, high)


def decision(seconds: Mapping[str, Seconds], default: str) -> tuple[str, bool]:
    """Which is fastest, and whether it is so beyond the spread; if not, that is the default."""
    best = min(seconds, key=lambda name: seconds[name].median)
    decided = best != default and seconds[best].high < seconds[default].low
    return (best if decided else default), decided
