"""Divisors of rotary frequencies, which GGUF files store, in words that other libraries read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ptir.models.rotation import KINDS, ORIGINAL

DIVIDED: Final = "divided"
"""The ``rope_type`` that lists them, which is ptir's own."""
CLOSE: Final = 1e-5
"""How far a divisor may be off: files hold them in f32, computed in one way or another."""
_USUAL: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_CONTEXTS: Final = tuple(float(1 << n) for n in range(4, 21))
"""Lengths for which models are first trained."""


def portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose rotations Transformers knows.

    Divisors are those of ``llama3`` where that has parameters which give them. Others become
    ``longrope``, which lists factors for short texts and for long ones; here they are the same.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping) or rope.get("rope_type") != DIVIDED:
        return dict(config)
    held, theta = rope["divisors"], float(rope["rope_theta"])
    found = _llama3(held, theta) or {
        "rope_type": "longrope",
        "rope_theta": theta,
        "short_factor": held,
        "long_factor": held,
        "attention_factor": 1.0,
        ORIGINAL: config["max_position_embeddings"],
    }
    rest = {key: one for key, one in rope.items() if key not in ("divisors", *found)}
    return {**config, "rope_parameters": {**rest, **found}}


def _llama3(divisors: Sequence[float], theta: float) -> dict[str, Any] | None:
    """The parameters of ``llama3`` by which frequencies are divided so; None where by none."""
    size = 2 * len(divisors)
    plain = tuple(theta ** (-2 * pair / size) for pair in range(len(divisors)))
    _, scaling = KINDS["llama3"]
    for context in _CONTEXTS:
        numbers = {"factor": round(max(divisors), 4), **_USUAL, ORIGINAL: context}
        scaled = scaling(plain, numbers, {}, "llama3").frequencies
        made = [one / other for one, other in zip(plain, scaled, strict=True)]
        if all(abs(a - b) <= CLOSE * b for a, b in zip(made, divisors, strict=True)):
            return {"rope_type": "llama3", "rope_theta": theta, **numbers, ORIGINAL: int(context)}
    return None
