"""Random programs: what a person might write, put together by a random number generator."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import ptir
from ptir import functional as F
from ptir.ir.program import Program
from ptir.types import spec

ROWS, COLUMNS = 6, 20
Move = Callable[[random.Random, Any, Any], Any]


def _window(rng: random.Random, a: Any, b: Any) -> Any:
    start = rng.randrange(COLUMNS - 3)
    return F.concat([a[:, start:], b[:, :start]], axis=1)


MOVES: dict[str, Move] = {
    "add": lambda rng, a, b: a + b,
    "product": lambda rng, a, b: a * b,
    "greater": lambda rng, a, b: F.maximum(a, b),
    "tanh": lambda rng, a, b: F.tanh(a),
    "exp": lambda rng, a, b: F.exp(-F.abs(a)),
    "choose": lambda rng, a, b: F.where(a > b, a, b * 0.5),
    "softmax": lambda rng, a, b: F.softmax(a, axis=rng.randrange(2)),
    "rows": lambda rng, a, b: a - a.sum(axis=1, keepdims=True) * 0.05,
    "columns": lambda rng, a, b: a - a.max(axis=0, keepdims=True),
    "turned": lambda rng, a, b: a.transpose(1, 0).reshape(ROWS, COLUMNS),
    "window": _window,
    "matrix": lambda rng, a, b: F.tanh(a @ b.transpose(1, 0) @ b * 0.1),
    "place": lambda rng, a, b: b + a.argmax(1).astype("f32").reshape(ROWS, 1) * 0.1,
    "taken": lambda rng, a, b: F.take(a, b[:, 0].astype("i32"), axis=0),
    "broadcast": lambda rng, a, b: a * b[:1],
    "norm": lambda rng, a, b: F.layer_norm(a, b[0], b[1], epsilon=1e-3),
}


def random_program(seed: int, steps: int = 9, moves: dict[str, Move] = MOVES) -> Program:
    """A program of two inputs and up to three outputs."""
    rng = random.Random(seed)

    def body(x: Any, y: Any) -> Any:
        known = [x, y]
        for _ in range(steps):
            a, b = rng.choice(known), rng.choice(known)
            known.append(moves[rng.choice(sorted(moves))](rng, a, b))
        return tuple(rng.sample(known[2:], rng.randint(1, 3)))

    return ptir.capture(body, spec("f32", ROWS, COLUMNS), spec("f32", ROWS, COLUMNS))
