"""How heads are rotated by their positions: ``rope_parameters`` of a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.fields import flag, real
from ptir.types import F32

Numbers = Mapping[str, float]
Entry = Mapping[str, Any]
FULL: Final = "full_attention"
PROPORTIONAL: Final = "proportional"
ORIGINAL: Final = "original_max_position_embeddings"
CONTEXT: Final = "max_position_embeddings"


@dataclass(frozen=True)
class Rotation:
    """How queries and keys of a layer are rotated.

    Pair i of the first ``2 * len(frequencies)`` dimensions turns by position times
    ``frequencies[i]``, and these dimensions are multiplied by ``attention_factor``. Caches with
    room for more than ``original`` positions use the ``long`` frequencies: what a text may become
    decides, so that its first tokens are rotated as its last ones are. With ``growth`` queries are
    multiplied by ``1 + growth * log(1 + floor(position / original))``.
    """

    frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    long: tuple[float, ...] = ()
    original: float = 0.0
    growth: float = 0.0

    @property
    def size(self) -> int:
        """How many dimensions of a head are rotated."""
        return 2 * len(self.frequencies)

    @property
    def limit(self) -> float:
        """The most positions of a cache that is rotated as any smaller one is."""
        return self.original if self.long else math.inf

    def rotated(
        self, q: Tensor, k: Tensor, positions: Tensor, capacity: int
    ) -> tuple[Tensor, Tensor]:
        """Q f32[B,H,T,D] and k f32[B,G,T,D] at ``positions`` i32[B,T], for a cache of a capacity.

        The factor of both is given to the queries alone, as their products are all that is read.
        """
        chosen = self.long if capacity > self.limit else self.frequencies
        frequencies = F.constant(chosen)
        q, k = (F.rope(part, positions, frequencies, rotary=self.size) for part in (q, k))
        if self.attention_factor != 1.0:
            rest = q.shape[-1] - self.size
            q = q * F.constant([self.attention_factor**2] * self.size + [1.0] * rest)
        if self.growth:
            turns = F.floor(positions.astype(F32) / self.original)
            grown = F.log(turns + 1.0) * self.growth + 1.0
            q = q * grown.reshape(-1, 1, positions.shape[1], 1)
        return q, k


def rotation(config: Mapping[str, Any], model: str, size: int, layer_type: str = FULL) -> Rotation:
    """How heads of ``size`` are rotated in layers of a type; ``model`` is named in errors.

    ``config`` is in normal form; ``rope_parameters`` may also be one entry for all layer types.
    Raises ``CheckpointError`` for what is not implemented.
    """
    given = _said(config, model)
    if any(isinstance(value, Mapping) for value in given.values()):
        entries = {kind: one for kind, one in given.items() if isinstance(one, Mapping)}
        given = entries.get(layer_type) or entries.get(FULL) or next(iter(entries.values()))
    kind = given.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in KINDS:
        raise CheckpointError(
            f"{model}: rope_type {short(kind)} is not implemented; {', '.join(KINDS)} are: choose a"
            " checkpoint with one of these"
        )
    size = size if kind == PROPORTIONAL else _rotated(given, model, size)
    names, made = KINDS[kind]
    where = f"{model}: rope_type {kind!r}"
    numbers = {name: real(given, name, where=where) for name in ("rope_theta", *names)}
    plain = tuple(numbers["rope_theta"] ** (-2 * pair / size) for pair in range(size // 2))
    outer = {name: config[name] for name in (ORIGINAL, CONTEXT) if config.get(name) is not None}
    given = {**given, **outer}
    return _grown(made(plain, numbers, given, where), given, where)


def frequencies(config: Mapping[str, Any], model: str, size: int) -> tuple[float, ...]:
    """The angle per position of each pair, of models that rotate all layers alike and do no more.

    Raises ``CheckpointError`` as ``rotation`` does, and where there is more.
    """
    given = _said(config, model)
    kinds = [kind for kind, value in given.items() if isinstance(value, Mapping)] or [FULL]
    found = {kind: rotation(config, model, size, kind) for kind in kinds}
    first = found[kinds[0]]
    if any(one != first for one in found.values()):
        raise CheckpointError(
            f"{model}: rope_parameters differ between {', '.join(given)}; this is implemented for"
            " one kind of layer only: choose another checkpoint"
        )
    if replace(first, original=0.0) != Rotation(first.frequencies):
        raise CheckpointError(
            f"{model}: rope_parameters with an attention factor, long frequencies or growing"
            " queries are not implemented here: choose another checkpoint"
        )
    return first.frequencies


def _said(config: Mapping[str, Any], model: str) -> Entry:
    """What the configuration says of rotations, or means where it says nothing."""
    given = config.get("rope_parameters", {"rope_theta": 10000.0})
    if not isinstance(given, Mapping):
        raise CheckpointError(
            f"{model}: rope_parameters {short(given)} must be an object; correct it, or fetch the"
            " file again"
        )
    return given


def _rotated(given: Entry, model: str, size: int) -> int:
    """How many dimensions of a head are rotated."""
    if size % 2:
        raise CheckpointError(f"{model}: head_dim {size} must be even: positions rotate pairs")
    share = real(given, "partial_rotary_factor", 1.0, where=model)
    found = int(size * share)
    if found < 2 or found % 2:
        raise CheckpointError(
            f"{model}: partial_rotary_factor {share:g} rotates {found} of {size} dimensions; an"
            " even number >= 2 is needed: check config.json"
        )
    return found


def _grown(found: Rotation, given: Entry, where: str) -> Rotation:
    if given.get("llama_4_scaling_beta") is None:
        return found
    growth = real(given, "llama_4_scaling_beta", where=where)
    return replace(found, growth=growth, original=real(given, ORIGINAL, where=where))


def _optional(given: Entry, name: str, where: str) -> float | None:
    """A number that may be left out, null or 0."""
    value = given.get(name)
    return None if value is None or value == 0 else real(given, name, where=where)


def _factors(given: Entry, name: str, where: str, pairs: int) -> list[float]:
    """A number for each pair."""
    found = given.get(name)
    if not isinstance(found, list) or len(found) != pairs:
        raise CheckpointError(f"{where}: {name} must be a list of {pairs}, one for each pair")
    return [real({"divisors": one}, "divisors", where=f"{where}: {name}") for one in found]


def _default(plain: tuple[float, ...], numbers: Numbers, given: Entry, where: str) -> Rotation:
    return Rotation(plain)


def _divided(plain: tuple[float, ...], numbers: Numbers, given: Entry, where: str) -> Rotation:
    """Each frequency by a divisor of its own, as GGUF files store them."""
    divisors = _factors(given, "divisors", where, len(plain))
    return Rotation(tuple(one / by for one, by in zip(plain, divisors, strict=True)))


def _linear(plain: tuple[float, ...], numbers: Numbers, given: Entry, where: str) -> Rotation:
    return Rotation(tuple(one / numbers["factor"] for one in plain))


def _llama3(plain: tuple[float, ...], numbers: Numbers, given: Entry, where: str) -> Rotation:
    """Low frequencies are divided by ``factor``, high ones stay, those between are blended.

    What counts as low or high is how often a pair rotates within the context that the model was
    first trained with.
    """
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    if low >= high:
        raise CheckpointError(
            f"{where}: low_freq_factor {low:g} must be less than high_freq_factor {high:g}; check"
            " config.json"
        )

    def scaled(frequency: float) -> float:
        rotations = numbers[ORIGINAL] * frequency / (2 * math.pi)
        quick = min(max((rotations - low) / (high - low), 0.0), 1.0)
        return quick * frequency + (1 - quick) * frequency / numbers["factor"]

    return Rotation(tuple(map(scaled, plain)))


def _yarn(plain: tuple[float, ...], numbers: Numbers, given: Entry, where: str) -> Rotation:
    """As llama3, blended along the pairs between two that rotate ``beta`` times (Peng et al. 2023).

    The attention factor follows from the factor, or from two weights of its logarithm.
    """
    original = _original(given, where)
    factor = _scaled_by(given, original, where)
    attention = _optional(given, "attention_factor", where)
    if attention is None:
        of, over = (_optional(given, name, where) for name in ("mscale", "mscale_all_dim"))
        if of and over:
            attention = _mscale(factor, of) / _mscale(factor, over)
        else:
            attention = _mscale(factor, 1.0)
    betas = (
        _optional(given, "beta_fast", where) or 32.0,
        _optional(given, "beta_slow", where) or 1.0,
    )
    whole = flag(given, "truncate", True)
    first, last = _blended(2 * len(plain), numbers["rope_theta"], original, betas, whole)

    def scaled(pair: int) -> float:
        slow = min(max((pair - first) / (last - first), 0.0), 1.0)
        return plain[pair] * (1 - slow) + plain[pair] / factor * slow

    return Rotation(tuple(map(scaled, range(len(plain)))), attention)


def _blended(
    size: int, theta: float, original: float, betas: tuple[float, float], whole: bool
) -> tuple[float, float]:
    """The first and the last pair between which yarn blends."""
    logarithm = 2 * math.log(theta) or 1e-9
    turns = (min(max(original / (2 * math.pi * beta), 1e-300), 1e300) for beta in betas)
    first, last = (size * math.log(one) / logarithm for one in turns)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    return first, last + 0.001 if first == last else last


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _original(given: Entry, where: str) -> float:
    """The context that a model was first trained with; all of it where none is said."""
    known = ORIGINAL if given.get(ORIGINAL) is not None else CONTEXT
    return real(given, known, where=where)


def _scaled_by(given: Entry, original: float, where: str) -> float:
    """By how much the context was widened, said or as the contexts are to each other."""
    said = _optional(given, "factor", where)
    return said or real(given, CONTEXT, where=where) / original


def _longrope(plain: tuple[float, ...], numbers: Numbers, given: Entry, where: str) -> Rotation:
    """Two sets of divisors, for texts up to the first context and for longer ones (Ding 2024)."""
    original = _original(given, where)
    factor = _scaled_by(given, original, where)
    attention = _optional(given, "attention_factor", where)
    if attention is None:
        wide = factor > 1 and original > 1
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if wide else 1.0
    brief, long = (
        tuple(one / by for one, by in zip(plain, divisors, strict=True))
        for divisors in (
            _factors(given, name, where, len(plain)) for name in ("short_factor", "long_factor")
        )
    )
    return Rotation(brief, attention, long, original)


def _proportional(plain: tuple[float, ...], numbers: Numbers, given: Entry, where: str) -> Rotation:
    """The first pairs of a head alone, at the frequencies that they have among all of its pairs."""
    share = real(given, "partial_rotary_factor", 1.0, where=where)
    factor, turning = real(given, "factor", 1.0, where=where), int(share * 2 * len(plain) // 2)
    still = (0.0,) * (len(plain) - turning)
    return Rotation((*(one / factor for one in plain[:turning]), *still))


Scaling = Callable[[tuple[float, ...], Numbers, Entry, str], Rotation]

KINDS: Final[dict[str, tuple[tuple[str, ...], Scaling]]] = {
    "default": ((), _default),
    "divided": ((), _divided),
    "linear": (("factor",), _linear),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", ORIGINAL), _llama3),
    "longrope": ((), _longrope),
    PROPORTIONAL: ((), _proportional),
    "yarn": ((), _yarn),
}
"""By ``rope_type``: the numbers that it must have, and what it makes of plain frequencies."""
