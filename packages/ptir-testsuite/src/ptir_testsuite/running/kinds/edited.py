"""One edited text on a target: it is refused with an error of ptir, or it is run and judged.

Whatever parses is run as drawn and optimized, and judged as random programs are. Its row keeps a
digest of the outputs whose every bit is fixed, so that backends can be compared with each other.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np

from ptir.errors import OutOfMemory, PtirError, UnsupportedError
from ptir.ir.program import Block
from ptir.ops.reading import parse
from ptir_testsuite.corpus.edited import EditedProgram, numbered
from ptir_testsuite.corpus.programs import Drawn, exact_of
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.kinds.forms import WHOLE, compiled, forms_of, outputs
from ptir_testsuite.running.kinds.programs import Built, compared, judged_values
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.raised import told

PATIENCE: Final = 5.0
"""Seconds of a processor that one run may take: edits of numbers or names make endless loops."""

LARGEST: Final = 1 << 18
"""Bytes of all values of a program above which it is verified, and not run."""


ENDLESS: Final = "did not end"


FINALIZERS: Final = ("__del__", "_freed", "forget")
FREEING: Final = ("weakref.py", "_weakrefset.py")
"""Functions and files that run where memory is freed."""


class Late(BaseException):
    """A run took too long. Not an ``Exception``: nothing that it passes may take it for its own."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``Late`` inside after so long, where loops are driven by Python, as those of ptir are.

    The time is the processor's: how busy a machine is says nothing about a program. What does not
    come back to Python is for the process that waits for this one. Elsewhere than in a main thread,
    and where there are no such alarms, nothing is limited here.
    """
    known = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not known:
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        if not _finalizing(frame):  # there it would be printed and forgotten; it comes again
            raise Late

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.02)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _finalizing(frame: FrameType | None) -> bool:
    """Whether something is being freed: nothing that is raised there reaches anybody."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in FINALIZERS or Path(code.co_filename).name in FREEING:
            return True
        frame = frame.f_back
    return False


@dataclass(frozen=True)
class Read:
    """What became of a text: a program to run, or the row that says why there is none."""

    item: EditedProgram
    drawn: Drawn | None
    row: Row


def run_edited(item: EditedProgram, setting: Setting) -> Row:
    """Read the text and check everything about the program, if it still is one."""
    return next(run_edited_together((item,), setting))


def run_edited_together(items: Sequence[EditedProgram], setting: Setting) -> Iterator[Row]:
    """Like ``run_edited`` for each; the backend compiles all of them together where it can."""
    start = time.perf_counter()
    found = [_read(item) for item in items]
    made = _built([one.drawn for one in found if one.drawn], setting) if len(items) > 1 else {}
    share = (time.perf_counter() - start) / len(items)
    for one in found:
        row = one.row if one.drawn is None else _run(one, made.get(id(one.drawn)), setting)
        yield replace(row, seconds=row.seconds + share)


def _built(drawn: Sequence[Drawn], setting: Setting) -> dict[int, Built]:
    """The programs compiled together; nothing where they cannot be: then each is by itself."""
    try:
        forms = [forms_of(one, setting) for one in drawn]
        made = iter(compiled([form for each in forms for form in each], setting))
        pairs = zip(drawn, forms, strict=True)
        return {id(one): [(form, next(made)) for form in each] for one, each in pairs}
    except Exception:  # noqa: BLE001  a pass may raise it: whose fault shows when each is alone
        return {}


def _read(item: EditedProgram) -> Read:
    row = Row(item.id, "program", item.id, (), (), Outcome.PASS, phase="verify")
    text = item.text
    try:
        program = numbered(parse(text))
    except PtirError as error:
        return Read(item, None, replace(row, facts={"ended": f"refused: {error.code}"}))
    except Exception as error:  # noqa: BLE001  this is what is looked for
        said = f"{told('verify', error)}\n{text}"
        return Read(item, None, replace(row, outcome=Outcome.ERROR, message=said))
    if size(program.main) > LARGEST:
        return Read(item, None, replace(row, facts={"ended": "too large to run here"}))
    return Read(item, Drawn(program, item.arrays(program), ()), row)


def size(block: Block) -> int:
    """Bytes of all values of a block and of its regions; loops count once."""
    inner = sum(size(region) for i in block.instructions for region in i.regions)
    return inner + sum(type.nbytes for type in block.types)


def _run(read: Read, built: Built | None, setting: Setting) -> Row:
    drawn = read.drawn
    assert drawn is not None
    start = time.perf_counter()
    row = replace(read.row, phase="")
    try:
        row = replace(row, facts=_facts(drawn, setting, built))
    except Failed as failed:
        cause = failed.__cause__
        if isinstance(cause, OutOfMemory):
            row = replace(row, facts={"ended": f"refused: {cause.code}"})
        else:
            row = failed.ended(row, f"{failed.message}\n{_shown(drawn)}")
    except UnsupportedError as error:
        row = replace(row, facts={"ended": f"refused: {error.code}"})
    except Exception as error:  # noqa: BLE001  raised by a pass: it is what is looked for
        text = f"{told('compile', error)}\n{_shown(drawn)}"
        row = replace(row, outcome=Outcome.ERROR, phase="compile", message=text)
    return replace(row, seconds=time.perf_counter() - start)


def _shown(drawn: Drawn) -> str:
    pairs = zip(drawn.program.inputs, drawn.arrays, strict=True)
    lines = (f"  x{i} = {type} {array.tolist()}" for i, (type, array) in enumerate(pairs))
    return "\n".join((str(drawn.program), *lines))


def _facts(drawn: Drawn, setting: Setting, built: Built | None) -> dict[str, Any]:
    """Run and judge; what the row keeps."""
    if built is None:
        forms = forms_of(drawn, setting)
        built = list(zip(forms, compiled(forms, setting), strict=True))
    try:
        with limited(PATIENCE):
            found = {form.name: outputs(form, made, drawn, setting) for form, made in built}
    except Late:
        return {"ended": ENDLESS}
    values = found.pop(WHOLE)
    main = drawn.program.main
    errors = _judged(main, values, setting)
    exact = exact_of(drawn.program, setting.terms.rounds)
    for name, results in found.items():
        compared(name, main, results, values, errors, exact)
    bits = [_digest(values[v]) if exact[v] else "" for v in main.outputs]
    return {"ended": "ran", "bits": bits}


def _judged(main: Block, values: Sequence[Any], setting: Setting) -> list[Array]:
    """Judge every instruction by its oracle, which may not know what edits make of its op."""
    try:
        return judged_values(main, values, setting)
    except Failed:
        raise
    except Exception as error:
        raise Failed(Outcome.ERROR, "compare", f"in the suite: {told('oracle', error)}") from error


def _digest(array: Any) -> str:
    """A digest of type and elements, in which every NaN is one."""
    array = np.array(array, order="C")
    if array.dtype.kind not in "biu":
        with np.errstate(all="ignore"):
            array[np.isnan(array)] = np.nan
    head = f"{array.dtype}{array.shape}".encode()
    return hashlib.blake2b(head + array.tobytes(), digest_size=8).hexdigest()
