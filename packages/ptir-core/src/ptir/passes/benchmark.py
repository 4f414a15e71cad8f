"""Times implementations on the device itself and remembers which was fastest.

Records lie in one JSON file below the cache folder (``PTIR_CACHE_DIR``, else the platform's),
keyed by functional, operand types, attributes, backend and device.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ptir.backend.contract import Executable, Handle, OpQuery, Options
from ptir.backend.folders import cache_folder, replace_file
from ptir.errors import UnsupportedError, UsageError
from ptir.ir.program import Program
from ptir.passes.context import PassContext
from ptir.types import TensorType

WARM_UPS: Final = 2
REPEATS: Final = 7

Timer = Callable[[Program, PassContext], float]


@dataclass(frozen=True)
class TuningRecord:
    """One remembered choice; ``seconds`` are the medians of all that applied."""

    functional: str
    call: str
    backend: str
    device: str
    implementation: str
    seconds: dict[str, float]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What the choice was made for."""
        return (self.functional, self.call, self.backend, self.device)


def fastest(
    query: OpQuery,
    candidates: Mapping[str, Callable[[], Program]],
    context: PassContext,
    limit: int,
    timer: Timer | None = None,
) -> str:
    """The name of the fastest of ``candidates``; remembered if timed before, else timed now.

    A candidate makes its program when asked, or raises ``UnsupportedError`` and does not count.
    At most ``limit`` records are kept for each functional, the newest ones. A file that cannot be
    read or written is a warning: then everything is timed. Raises ``UnsupportedError`` where
    nothing applies.
    """
    call = f"({', '.join(map(str, query.operands))}) {{{query.attributes.text}}}"
    key = (query.name, call, context.backend.name, context.device.name)
    programs, refusals = _applying(candidates)
    if not programs:
        reasons = "; ".join(refusals)
        raise UnsupportedError(
            f"{query.name}: no implementation applies: {reasons}; drop the override, or choose"
            " another backend (see `ptir backends`)"
        )
    kept = _remembered()
    known = next((record for record in kept if record.key == key), None)
    if known is not None and known.seconds.keys() == programs.keys():
        return known.implementation
    timed = {name: (timer or run_time)(program, context) for name, program in programs.items()}
    best = min(timed, key=lambda name: timed[name])
    others = [record for record in kept if record.key != key]
    _write(_limited([*others, TuningRecord(*key, best, timed)], limit, key[0]))
    return best


def _remembered() -> list[TuningRecord]:
    try:
        return tuning_records()
    except UsageError as error:
        warnings.warn(f"{error}; its implementations are timed again", stacklevel=2)
        return []


def _applying(
    candidates: Mapping[str, Callable[[], Program]],
) -> tuple[dict[str, Program], list[str]]:
    programs: dict[str, Program] = {}
    refusals: list[str] = []
    for name, make in candidates.items():
        try:
            programs[name] = make()
        except UnsupportedError as error:
            refusals.append(f"{name}: {error}")
    return programs, refusals


def _limited(kept: Sequence[TuningRecord], limit: int, functional: str) -> list[TuningRecord]:
    """``kept``, oldest first, with at most the ``limit`` newest records of one functional."""
    of_it = [record for record in kept if record.functional == functional]
    dropped = {record.key for record in of_it[:-limit]}
    return [record for record in kept if record.key not in dropped]


# --- timing ---


def run_time(program: Program, context: PassContext) -> float:
    """Seconds that one run of ``program`` takes: the median of several, warmed up, synchronized."""
    import statistics  # every start would wait for it

    backend, device = context.backend, context.device
    executable = backend.compile(program, device, Options())
    handles = [backend.upload(array, device) for array in sample_inputs(program.inputs)]
    for _ in range(WARM_UPS):
        _seconds(executable, handles, context)
    return statistics.median(_seconds(executable, handles, context) for _ in range(REPEATS))


def _seconds(executable: Executable, handles: Sequence[Handle], context: PassContext) -> float:
    context.backend.synchronize(context.device)
    start = time.perf_counter()
    executable.run(handles)
    context.backend.synchronize(context.device)
    return time.perf_counter() - start


def sample_inputs(types: Iterable[TensorType]) -> list[Any]:
    """Operands to time with: floats in [0, 1), integers half the longest axis, bools true.

    Integers are lengths, positions and indices, which should fall inside something.
    """
    import numpy as np

    listed = list(types)
    middle = max((size for t in listed for size in t.shape), default=2) // 2
    random = np.random.default_rng(0)
    return [
        random.random(t.shape).astype(t.dtype.numpy)
        if t.dtype.is_float
        else np.full(t.shape, min(middle, 127) if t.dtype.bits == 8 else middle, t.dtype.numpy)
        for t in listed
    ]


# --- the file ---


def tuning_records() -> list[TuningRecord]:
    """All tuning records, oldest first; raises ``UsageError`` for a file that is damaged."""
    path = tuning_records_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    try:
        found = [TuningRecord(**entry) for entry in json.loads(text)["choices"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(f"{path}: not a list of timed choices ({error})") from None
    for record in found:
        if not isinstance(record.seconds, dict) or record.implementation not in record.seconds:
            raise UsageError(f"{path}: not a list of timed choices ({record.functional!r})")
    return found


def tuning_records_file() -> Path:
    """The file of the tuning records."""
    return cache_folder() / "implementations.json"


def _write(kept: Sequence[TuningRecord]) -> None:
    """Replace the file in one step, so that a reader sees the old list or the new one."""
    path = tuning_records_file()
    text = json.dumps({"choices": [asdict(record) for record in kept]}, indent=1)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        said = f"{path}: cannot be written ({error.strerror}); the choice is not remembered"
        warnings.warn(f"{said}; set PTIR_CACHE_DIR to a folder of yours", stacklevel=2)
