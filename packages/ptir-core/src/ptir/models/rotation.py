"""The rotary frequency of each pair of a head: ``rope_parameters`` of a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from ptir.errors import CheckpointError, short
from ptir.models.fields import real

Numbers = Mapping[str, float]


def frequencies(config: Mapping[str, Any], model: str, size: int) -> tuple[float, ...]:
    """The angle per position of each pair of a head of ``size``; ``model`` is named in errors.

    ``config`` is in normal form; ``rope_parameters`` may also be one entry for all layer types.
    Raises ``CheckpointError`` for what is not implemented.
    """
    given = _entry(config, model)
    kind = given.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in KINDS:
        raise CheckpointError(
            f"{model}: rope_type {short(kind)} is not implemented; {', '.join(KINDS)} are: choose a"
            " checkpoint with one of these"
        )
    if given.get("partial_rotary_factor", 1) != 1:
        found = given["partial_rotary_factor"]
        raise CheckpointError(
            f"{model}: partial_rotary_factor {short(found)} is not implemented; only 1 is: choose a"
            " checkpoint whose heads are rotated whole"
        )
    if size % 2:
        raise CheckpointError(f"{model}: head_dim {size} must be even: positions rotate pairs")
    names, scaled = KINDS[kind]
    where = f"{model}: rope_type {kind!r}"
    numbers = {name: real(given, name, where=where) for name in ("rope_theta", *names)}
    divisors = _divisors(given, where, size // 2) if kind == "divided" else [1.0] * (size // 2)
    plain = [
        numbers["rope_theta"] ** (-2 * pair / size) / divisor
        for pair, divisor in enumerate(divisors)
    ]
    if "low_freq_factor" in numbers and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        raise CheckpointError(
            f"{model}: rope_type {kind!r}: low_freq_factor {numbers['low_freq_factor']:g} must be"
            f" less than high_freq_factor {numbers['high_freq_factor']:g}; check config.json"
        )
    return tuple(scaled(frequency, numbers) for frequency in plain)


def _entry(config: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """The parameters that all layers share."""
    given: Mapping[str, Any] = config.get("rope_parameters", {"rope_theta": 10000.0})
    entries = [value for value in given.values() if isinstance(value, Mapping)] or [given]
    if any(entry != entries[0] for entry in entries):
        raise CheckpointError(
            f"{model}: rope_parameters differ between {', '.join(given)}; this is implemented for"
            " one kind of layer only: choose another checkpoint"
        )
    return entries[0]


def _divisors(given: Mapping[str, Any], where: str, pairs: int) -> list[float]:
    """By what the frequency of each pair is divided, as GGUF files store it."""
    found = given.get("divisors")
    if not isinstance(found, list) or len(found) != pairs:
        raise CheckpointError(f"{where}: divisors must be a list of {pairs}, one for each pair")
    return [real({"divisors": one}, "divisors", where=where) for one in found]


def _llama3(frequency: float, numbers: Numbers) -> float:
    """Low frequencies are divided by ``factor``, high ones stay, those between are blended.

    What counts as low or high is how often a pair rotates within the context that the model was
    first trained with.
    """
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    rotations = numbers["original_max_position_embeddings"] * frequency / (2 * math.pi)
    quick = min(max((rotations - low) / (high - low), 0.0), 1.0)
    return quick * frequency + (1 - quick) * frequency / numbers["factor"]


KINDS: Final[dict[str, tuple[tuple[str, ...], Callable[[float, Numbers], float]]]] = {
    "default": ((), lambda frequency, numbers: frequency),
    "divided": ((), lambda frequency, numbers: frequency),
    "linear": (("factor",), lambda frequency, numbers: frequency / numbers["factor"]),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        _llama3,
    ),
}
"""By ``rope_type``: the numbers that it takes, and what it makes of a frequency."""
