"""A plugin of ptir: GELU by an exponential, a rule that simplifies it, and a list of what was used.

It knows no model. Where it is installed, every model whose GELU is the one with tanh takes the
implementation, unless something stronger says otherwise (``ptir overrides``).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

from ptir import functional as F
from ptir.events import Event, ImplementationChosen, PassRun
from ptir.functional.define import lowering
from ptir.ops.implementations import Implementation
from ptir.ops.policies import parse_override
from ptir.plugins import hookimpl
from ptir.rewrite.rule import row
from ptir.trace import Sink

RULE = row(
    "sign of a product",
    "neg(mul(x, y))",
    "mul(x, neg(y))",
    {"x": "f32[256]", "y": "f32[256]"},
)


def by_sigmoid(x, *, approximate):
    """x times the logistic function of what is in the tanh: the same formula, without tanh."""
    inner = (x + x * x * x * 0.044715) * (2.0 * math.sqrt(2.0 / math.pi))
    return x / (F.exp(-inner) + 1.0)


def with_tanh(types, attributes):
    """Why a call cannot use it, or None."""
    found = attributes["approximate"]
    return None if found == "tanh" else f"approximate is {found!r}; 'tanh' is taken"


class Used(Sink):
    """Counts implementations and rules, and writes them to a file in the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.implementations: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        if isinstance(event, ImplementationChosen):
            self.implementations[f"{event.functional}={event.implementation}"] += 1
        elif isinstance(event, PassRun):
            self.rules.update(event.rewrites)

    def finish(self) -> None:
        held = {"implementations": self.implementations, "rules": self.rules}
        self.path.write_text(json.dumps(held, indent=1), encoding="utf-8")


@hookimpl
def ptir_implementations():
    doc = "x / (1 + exp(-2 z)), z being what the tanh is taken of"
    return [Implementation("gelu", "sigmoid", lowering(by_sigmoid), doc, with_tanh)]


@hookimpl
def ptir_overrides():
    return [parse_override("gelu[approximate=tanh]=force=sigmoid")]


@hookimpl
def ptir_rules():
    return [RULE]


@hookimpl
def ptir_trace_sinks(folder: Path | None):
    return [] if folder is None else [Used(folder / "used.json")]
