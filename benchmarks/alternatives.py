"""Where each implementation of a functional wins: all of them on one call, in one run.

Each case is a call of a functional, weights as parameters in the form that the backend packs them
into. Rounds of all implementations alternate, and a ratio is taken within each round: the default's
time over an implementation's, so above 1 is faster than the default. The table has medians, with
the quarters around them, and marks what is faster beyond them. It is what ``ptir tune`` measures,
and those that round to narrower types besides.

    python benchmarks/alternatives.py --backend c --rounds 15 --json out.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from measuring.origin import origin

import ptir
from ptir import functional as F
from ptir.backend import registry
from ptir.backend.contract import Target
from ptir.errors import UnsupportedError
from ptir.ir.program import Program
from ptir.ops.implementations import BACKEND, FUNCTIONALS
from ptir.ops.policies import Override, Policy
from ptir.passes import PassContext, timing
from ptir.passes.raise_composites import raise_composites
from ptir.passes.select import select
from ptir.types import parse_type

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Case:
    """A call: what it is, its operands' types, and which of them are weights of a model."""

    functional: str
    what: str
    types: str
    call: Callable[..., Any]
    weights: tuple[int, ...] = ()

    def program(self) -> Program:
        """The call alone, inputs first."""
        made = ptir.capture(self.call, *map(parse_type, self.types.split()))
        ports = (
            replace(port, kind="parameter") if number in self.weights else port
            for number, port in enumerate(made.ports)
        )
        return Program(made.main, tuple(ports), made.version)


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.attention(q, k, v, causal=False)


def _attention(what: str, B: int, H: int, G: int, T: int, C: int, D: int) -> Case:
    cache = f"f32[{B},{G},{C},{D}]"
    return Case("attention", what, f"f32[{B},{H},{T},{D}] {cache} {cache}", attention)


def _conv(count: int, size: int, channels: int, outputs: int) -> Case:
    what = f"{count} x {size} px, {channels} to {outputs}, 3 x 3"
    types = f"f32[{count},{size},{size},{channels}] f32[3,3,{channels},{outputs}]"
    return Case("conv2d", what, types, lambda x, w: F.conv2d(x, w, padding=1), (1,))


def _linear(rows: int, inputs: int, outputs: int, dtype: str = "f32", stored: bool = True) -> Case:
    kind = f"{dtype} weights" if stored else f"{dtype} from another op"
    types = f"f32[{rows},{inputs}] {dtype}[{outputs},{inputs}]"
    what = f"{rows} x {inputs} to {outputs}, {kind}"
    return Case("linear", what, types, lambda x, w: F.linear(x, w, layout="oi"), (1,) * stored)


def _quantized(rows: int, inputs: int, outputs: int, bits: int) -> Case:
    words, groups = inputs * bits // 32, inputs // 32
    types = f"f32[{rows},{inputs}] u32[{outputs},{words}]" + f" f32[{outputs},{groups}]" * 2
    what = f"{rows} x {inputs} to {outputs}, {bits} bits"

    def call(x: Any, *weight: Any) -> Any:
        return F.quantized_linear(x, *weight, bits=bits, group=32)

    return Case("quantized_linear", what, types, call, (1, 2, 3))


def _softmax(axis: int, *shape: int) -> Case:
    what = f"{' x '.join(map(str, shape))} along axis {axis}"
    sizes = ",".join(map(str, shape))
    return Case("softmax", what, f"f32[{sizes}]", lambda x: F.softmax(x, axis=axis))


def _pool(kind: str, window: int, *shape: int) -> Case:
    pool = getattr(F, f"{kind}_pool2d")
    what = f"{' x '.join(map(str, shape))}, {window} x {window}"
    sizes = ",".join(map(str, shape))

    def call(x: Any) -> Any:
        return pool(x, window, strides=1, padding=window // 2)

    return Case(f"{kind}_pool2d", what, f"f32[{sizes}]", call)


def _top_k(k: int, lines: int, size: int) -> Case:
    types = f"f32[{lines},{size}]"
    return Case("top_k", f"{k} of {lines} x {size}", types, lambda x: F.top_k(x, k)[0])


CASES = (
    _attention("a token, 12 heads, 1024 keys", 1, 12, 12, 1, 1024, 64),
    _attention("15 tokens, 1 head, 8192 keys", 1, 1, 1, 15, 8192, 256),
    _attention("8 tokens, 1 head, 32768 keys", 1, 1, 1, 8, 32768, 128),
    _attention("15 tokens, 1 head, 16384 keys", 1, 1, 1, 15, 16384, 512),
    _attention("197 patches, 8 heads", 1, 8, 8, 197, 197, 64),
    _attention("64 tokens, 4 heads on 1", 1, 4, 1, 64, 64, 256),
    _conv(1, 56, 64, 64),
    _conv(4, 28, 128, 128),
    _conv(1, 14, 256, 256),
    _conv(1, 28, 256, 256),
    _conv(8, 14, 512, 512),
    _linear(1, 4096, 4096),
    _linear(1, 4096, 4096, stored=False),
    _linear(4, 1024, 1024, stored=False),
    _linear(128, 768, 3072),
    _linear(128, 768, 3072, "bf16"),
    _quantized(1, 2048, 2048, 4),
    _quantized(128, 2048, 2048, 4),
    _softmax(1, 64, 1000),
    _softmax(1, 1, 1 << 20),
    _softmax(1, 4, 1 << 16),
    _softmax(0, 1000, 64),
    _softmax(1, 16, 64, 64, 32),
    _pool("max", 3, 1, 112, 112, 64),
    _pool("max", 5, 1, 20, 20, 256),
    _pool("max", 13, 1, 20, 20, 256),
    _pool("avg", 3, 1, 112, 112, 64),
    _pool("avg", 7, 1, 56, 56, 64),
    _top_k(8, 64, 4096),
    _top_k(40, 1, 128256),
    _top_k(1000, 1, 128256),
)


@dataclass(frozen=True)
class Row:
    """One implementation on one call; ``ratio`` is the default's time over its own."""

    functional: str
    what: str
    implementation: str
    accuracy: str
    default: bool
    seconds: float
    ratio: float
    low: float
    high: float

    @property
    def wins(self) -> bool:
        """Whether it is faster than the default beyond the spread."""
        return self.low > 1


def candidates(case: Case, context: PassContext) -> dict[str, Program]:
    """The call under each implementation that applies."""
    program = raise_composites(case.program(), context)
    found = {}
    for name in (*FUNCTIONALS[case.functional].implementations, BACKEND):
        forced = (Override(case.functional, Policy("force", name)),)
        try:
            found[name] = select(program, replace(context, overrides=forced))
        except UnsupportedError:
            continue
    return found


def preferred(case: Case) -> str:
    """What a backend without a kernel of its own takes."""
    program = case.program()
    (call,) = (one for one in program.main.instructions if one.op == "composite")
    types = [program.main.types[operand] for operand in call.operands]
    return FUNCTIONALS[case.functional].default(types, call.attributes)[0]


def measure(case: Case, target: Target, rounds: int) -> Iterator[Row]:
    """A row for each implementation of a case, the default first."""
    context = PassContext(target.backend, target.device)
    timing.ROUNDS = rounds
    times, _ = timing.run_times(candidates(case, context), context)
    default = BACKEND if BACKEND in times else preferred(case)
    known = FUNCTIONALS[case.functional].implementations
    for name in sorted(times, key=lambda name: name != default):
        pairs = zip(times[default], times[name], strict=True)
        low, median, high = statistics.quantiles(
            [mine / other for mine, other in pairs], n=4, method="inclusive"
        )
        accuracy = known[name].accuracy if name in known else "reordered"
        seconds = statistics.median(times[name])
        is_default = name == default
        yield Row(
            case.functional, case.what, name, accuracy, is_default, seconds, median, low, high
        )


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each call, with the ratio of every implementation to the default."""
    lines = [
        "| functional | call | default | others, by how many times as fast |",
        "|---|---|---|---|",
    ]
    for key in dict.fromkeys((row.functional, row.what) for row in rows):
        mine = [row for row in rows if (row.functional, row.what) == key]
        (default,) = (row for row in mine if row.default)
        others = ", ".join(_told(row) for row in mine if not row.default) or "none"
        first = f"{default.implementation} {default.seconds * 1e3:.3g} ms"
        lines.append(f"| {key[0]} | {key[1]} | {first} | {others} |")
    return "\n".join(lines)


def _told(row: Row) -> str:
    name = f"**{row.implementation}**" if row.wins else row.implementation
    name += " (rounds)" if row.accuracy == "narrower" else ""
    return f"{name} {row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]"


def wins(folder: Path) -> str:
    """Markdown: what won somewhere in the stored results, as docs/guides/overrides.md has it."""
    lines = [
        "| functional | implementation | backend | call | times the default |",
        "|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("alternatives-*.json")):
        held = json.loads(path.read_text(encoding="utf-8"))
        for row in (Row(**entry) for entry in held["rows"]):
            if row.wins:
                ratio = f"{row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]"
                names = f"| {row.functional} | {row.implementation} | {held['backend']}"
                lines.append(f"{names} | {row.what} | {ratio} |")
    first, second, *rest = lines
    return "\n".join((first, second, *sorted(rest)))


def main() -> None:
    """Measure what is asked for, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="c")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", help="one functional")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--wins", action="store_true", help="only print what is stored")
    given = parser.parse_args()
    if given.wins:
        print(wins(RESULTS))
        return
    target = registry.get(given.backend)
    chosen = [case for case in CASES if given.only in (None, case.functional)]
    rows = [row for case in chosen for row in measure(case, target, given.rounds)]
    print(table(rows))
    if given.json:
        facts = origin(argparse.Namespace(**vars(given), llama=False, threads=None))
        held = {**facts, "device": target.device.name, "note": given.note}
        held["rows"] = [asdict(row) for row in rows]
        given.json.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
