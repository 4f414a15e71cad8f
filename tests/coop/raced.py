"""Runs one small program of every kind of coop kernel; a fault may be planted in the text.

``oclgrind --data-races`` runs it: see ``test_coop_races.py``. The arguments are the kinds, and what
is planted: a text, and what takes its place the first time it occurs in a file's kernels.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from opencl_runs import Array, normal, run, with_parameters

from ptir import functional as F
from ptir.backend import registry
from ptir.backend.contract import Target
from ptir.capture import call, call_multi
from ptir.codegen.schedules import tiles, tuned_tiles


def softmax(target: Target) -> tuple[Array, Array]:
    x = normal(2, 200)
    shares = np.exp(x.astype(np.float64))
    wanted = shares / shares.sum(-1, keepdims=True)
    return run(target, lambda x: F.softmax(x, axis=-1), x), wanted


def streamed(target: Target) -> tuple[Array, Array]:
    x, weight = normal(2, 72), normal(72, 40, seed=1)
    body = lambda x, w: F.linear(F.softmax(x, axis=-1), w, layout="io")  # noqa: E731
    shares = np.exp(x.astype(np.float64))
    return with_parameters(target, body, x, weight), shares / shares.sum(-1, keepdims=True) @ weight


def blocked(target: Target) -> tuple[Array, Array]:
    x, weight = normal(18, 36), normal(36, 40, seed=1)
    body = lambda x, w: F.linear(x, w, layout="io")  # noqa: E731
    return with_parameters(target, body, x, weight), x.astype(np.float64) @ weight


def attention(target: Target) -> tuple[Array, Array]:
    """A step with its cache update: one key that counts is the new one."""
    q, new, cache = normal(1, 2, 1, 8), normal(1, 1, 1, 8, seed=1), normal(1, 1, 6, 8, seed=2)

    def body(q: Any, new: Any, cache: Any, start: Any) -> Any:
        one = start * 0 + 1
        keys, values = (F.cache_update(old, new, start, one) for old in (cache, cache * 2.0))
        return F.attention(q, keys, values, start=start, length=start + 1)

    found = run(target, body, q, new, cache, np.array([3], np.int32))
    keys, values = (np.concatenate([old[0, 0, :3], new[0, 0]]) for old in (cache, cache * 2.0))
    scores = q[0, :, 0].astype(np.float64) @ keys.T * 8**-0.5
    shares = np.exp(scores)
    return found, (shares / shares.sum(-1, keepdims=True) @ values)[None, :, None]


def split(target: Target) -> tuple[Array, Array]:
    """The step again, on a device of many units whose groups attend to two keys each."""
    device: Any = target.backend.opened(target.device).device  # type: ignore[attr-defined]
    row, traits = device.traits.device_class, device.traits
    table: dict[str, Any] = tiles.TILES
    usual = table[row]
    table[row] = replace(usual, attention_block_keys=2, min_keys_per_split=2)
    device.traits = replace(traits, compute_units=16)
    tuned_tiles.forget()
    try:
        return attention(target)
    finally:
        table[row], device.traits = usual, traits
        tuned_tiles.forget()


def prompt(target: Target) -> tuple[Array, Array]:
    q, k = normal(1, 1, 5, 8), normal(1, 1, 40, 8, seed=1)
    body = lambda q, k, s, n: F.attention(q, k, k, start=s, length=n)  # noqa: E731
    found = run(target, body, q, k, np.array([33], np.int32), np.array([38], np.int32))
    scores = q[0, 0].astype(np.float64) @ k[0, 0].T * 8**-0.5
    shares = np.exp(scores) * (np.arange(40) <= 33 + np.arange(5)[:, None])
    return found, (shares / shares.sum(-1, keepdims=True) @ k[0, 0])[None, None]


def cumulative(target: Target) -> tuple[Array, Array]:
    x = normal(1, 300)
    found = run(target, lambda x: call("cumulative", x, axis=1, kind="sum"), x)
    return found, x.astype(np.float64).cumsum(1)


def ordered(target: Target) -> tuple[Array, Array]:
    x = normal(1, 70)
    found = run(target, lambda x: call_multi("sort", x, axis=1, descending=False)[1], x)
    return found, x.argsort(1, kind="stable")


def best(target: Target) -> tuple[Array, Array]:
    x = normal(1, 100)
    return run(target, lambda x: F.top_k(x, 2)[1], x), (-x).argsort(1, kind="stable")[:, :2]


def mapped(target: Target) -> tuple[Array, Array]:
    x = normal(1, 37)
    return run(target, lambda x: x * 2.0, x), x * 2


def delta(target: Target) -> tuple[Array, Array]:
    """Three tokens of which two are real, of columns that fill no workgroup."""
    q, k, v = normal(1, 1, 3, 6), normal(1, 1, 3, 6, seed=1) * 0.4, normal(1, 2, 3, 5, seed=2)
    g, beta, state = -np.abs(normal(1, 2, 3, seed=3)), np.full((1, 2, 3), 0.5), normal(1, 2, 6, 5)
    given = q, k, v, g, beta.astype(np.float32), state, np.array([2], np.int32)
    seen, last = run(target, F.gated_delta_rule, *given)
    S, wanted = state[0].astype(np.float64), []
    for t in range(3):
        for head in range(2 if t < 2 else 0):
            S[head] *= np.exp(g[0, head, t])
            S[head] += np.outer(k[0, 0, t], 0.5 * (v[0, head, t] - k[0, 0, t] @ S[head]))
        wanted.append(q[0, 0, t] @ S)
    found = np.concatenate([seen.reshape(-1), last.reshape(-1)])
    return found, np.concatenate([np.stack(wanted, 1).reshape(-1), S.reshape(-1)])


def experts(target: Target) -> tuple[Array, Array]:
    x, weight, chosen = normal(2, 36), normal(96, 36, seed=1), np.array([[2, 0], [1, 2]])
    body = lambda x, c, w: F.expert_linear(x, w, c.astype("i32"), experts=3)  # noqa: E731
    found = with_parameters(target, body, x, weight, beside=[chosen.astype(np.float32)])
    stacked = weight.reshape(3, 32, 36).astype(np.float64)
    return found, np.einsum("ni,nkoi->nko", x, stacked[chosen])


KINDS: dict[str, Callable[[Target], tuple[Array, Array]]] = {
    function.__name__: function
    for function in (
        *(softmax, streamed, blocked, attention, split, prompt, cumulative, ordered, best, mapped),
        *(delta, experts),
    )
}


def main() -> None:
    """Print, for each kind, how far its results are from what they should be."""
    kinds, planted = json.loads(sys.argv[1])
    target = registry.get("opencl")
    backend: Any = target.backend
    device = backend.opened(target.device).device
    build, places = device.build, []

    def planting(source: str) -> Any:
        old, new = planted
        head, begin, kernels = source.partition("__kernel")
        places.append(kernels.count(old))
        return build(head + begin + kernels.replace(old, new, 1))

    if planted:
        device.build = planting
    for kind in kinds:
        found, wanted = KINDS[kind](target)
        print(kind, float(np.abs(found - wanted).max()))
    assert not planted or sum(places), f"{planted[0]!r} is in no kernel"


if __name__ == "__main__":
    main()
