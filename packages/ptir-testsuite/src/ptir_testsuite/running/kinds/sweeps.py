"""One sweep on a target: its calls judged on two sets of operands, in turns and by threads.

After the runs in turns, several threads run the executable at the same time, each on handles of its
own; their operands differ, so that what they share gives itself away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ptir.backend import Executable
from ptir.errors import UnsupportedError
from ptir.ops import OPS
from ptir_testsuite.corpus.profiles import profiles_of
from ptir_testsuite.corpus.programs import Drawn
from ptir_testsuite.corpus.sweeps import LETTERS, Sweep
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.kinds.forms import WHOLE, Form, as_drawn, compiled, forms_of, outputs
from ptir_testsuite.running.kinds.handles import at_once, guarded
from ptir_testsuite.running.kinds.programs import judged_forms
from ptir_testsuite.running.outcomes import Outcome, Row
from ptir_testsuite.running.owners import with_owners
from ptir_testsuite.running.turns import RUNS, in_turns

ROUNDS: Final = 2  # runs of each of several threads

Found = Mapping[str, Sequence[Any]]
"""What a form gave, by the operands."""


def sweep_profiles(item: Sweep) -> frozenset[str]:
    """The profiles of all instructions."""
    main, found = item.program.main, set[str]()
    for instruction in main.instructions:
        types = (*(main.types[v] for v in instruction.operands), *instruction.types)
        found |= profiles_of(OPS[instruction.op], [t.dtype for t in types])
    return frozenset(found)


def run_sweep(item: Sweep, setting: Setting) -> Row:
    """Run the sweep and check everything about it."""
    start = time.perf_counter()
    profiles = sweep_profiles(item)
    row = Row(item.id, item.op, item.call, item.dtypes, tuple(sorted(profiles)), Outcome.PASS)
    row = replace(row, claimed=profiles <= setting.claims)
    try:
        _check(item, setting)
    except Failed as failed:
        row = failed.ended(row, f"{item.call}: {failed.message}\n  case {item.id}")
    except UnsupportedError as error:
        row = replace(row, outcome=Outcome.UNSUPPORTED, phase="compile", message=str(error))
    row = with_owners(row, (instruction.op for instruction in item.program.main.instructions))
    return replace(row, seconds=time.perf_counter() - start)


def _check(item: Sweep, setting: Setting) -> None:
    drawn = {letter: item.drawn(letter) for letter in LETTERS}
    forms = _forms(drawn[LETTERS[0]], setting)
    built = list(zip(forms, compiled(forms, setting), strict=True))
    found = {form.name: _found(form, made, drawn, setting) for form, made in built}
    for letter in LETTERS:
        every = {name: by_letter[letter] for name, by_letter in found.items()}
        if WHOLE not in every:  # the results are all there is beside the operands
            every[WHOLE] = [*drawn[letter].arrays, *every.pop(forms[0].name)]
        judged_forms(drawn[letter], every, setting)
    form, made = built[-1]
    _threaded(form, made, drawn, found[form.name], setting)


def _found(form: Form, made: Executable, drawn: Mapping[str, Drawn], setting: Setting) -> Found:
    return in_turns(form.name, lambda letter: outputs(form, made, drawn[letter], setting))


def _forms(drawn: Drawn, setting: Setting) -> list[Form]:
    """Calls side by side as they are; with views, in the three forms of a random program."""
    main = drawn.program.main
    side_by_side = len(main.outputs) == sum(len(i.types) for i in main.instructions)
    return [as_drawn(drawn, setting)] if side_by_side else forms_of(drawn, setting)


def _threaded(
    form: Form, made: Executable, drawn: Mapping[str, Drawn], found: Found, setting: Setting
) -> None:
    """Every second thread has the other operands; each must get what one run alone gave."""
    backend, device = setting.target.backend, setting.target.device

    def runs(number: int) -> None:
        letter = LETTERS[number % len(LETTERS)]
        arrays = drawn[letter].arrays
        handles = guarded("upload", lambda: [backend.upload(arrays[p], device) for p in form.ports])
        for turn in range(ROUNDS):
            results = guarded(
                "execute", lambda: [backend.download(h, device) for h in made.run(handles)]
            )
            for place, (got, right) in enumerate(zip(results, found[letter], strict=True)):
                if got.tobytes() != right.tobytes():
                    text = (
                        f"{form.name}: beside other threads, output {place} of run {turn + 1} of"
                        f" thread {number + 1} differs from what a run alone gave"
                    )
                    raise Failed(Outcome.MISMATCH, "execute", text)

    at_once(runs)


def told(item: Sweep) -> Iterator[str]:
    """Everything about a sweep but its numbers, as lines of text."""
    yield item.call
    yield f"rule: right on operands {' and '.join(LETTERS)}; runs on {RUNS}, then threads at once"
    yield from (f"  {line}" for line in str(item.program).splitlines())
