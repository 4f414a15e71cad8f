"""What the speed of decoding is estimated from on a target, or why it is not estimated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ptir.cli.bandwidth import is_host
from ptir.errors import BackendUnavailable

if TYPE_CHECKING:
    from ptir.backend.contract import Target
    from ptir.cli.common import CommonOptions
    from ptir.runtime.catalog import InCaches, Small


@dataclass(frozen=True)
class Basis:
    """Bytes per second of a target's memory, and the share of them that decoding reaches there.

    Both are for ``estimated_speed``; there are none where ``problem`` says why. ``caches`` are
    bytes per second by how many are read again and again, ``waits`` what else small models need.
    """

    backend: str = ""
    bandwidth: float | None = None
    reached: Mapping[int, float] = field(default_factory=dict[int, float])
    problem: str = ""
    caches: Mapping[int, float] = field(default_factory=dict[int, float])
    waits: InCaches | None = None

    def speed(self, token_bytes: Mapping[int, int], layers: int) -> float | None:
        """Tokens per second of a model that reads so much for each; None where nobody can tell."""
        from ptir.runtime.catalog import estimated_speed

        if self.bandwidth is None or not token_bytes:
            return None
        small = self._small(sum(token_bytes.values()), layers)
        return estimated_speed(token_bytes, self.bandwidth, self.reached, small)

    def _small(self, nbytes: int, layers: int) -> Small | None:
        """How a model of ``layers`` that reads ``nbytes`` waits for caches; None for large ones."""
        import numpy as np

        from ptir.runtime.catalog import Small

        if self.waits is None or not self.caches or nbytes > max(self.caches):
            return None
        sizes = sorted(self.caches)
        speeds = [self.caches[size] for size in sizes]
        return Small(float(np.interp(np.log(nbytes), np.log(sizes), speeds)), self.waits, layers)


def basis_of(target: Target, bandwidth: float | None = None, *, again: bool = False) -> Basis:
    """The basis on ``target``; its bandwidth, where none is given, is measured once and kept.

    So is that of caches, which are measured ``again`` if that is said.
    """
    from ptir.cli.kept_bandwidth import bandwidth_of, cache_bandwidths
    from ptir.runtime.catalog import IN_CACHES

    reached = measured_shares(target)
    if not reached:
        return Basis(str(target), problem=f"{_unmeasured(target)}; `ptir bench MODEL` measures it")
    waits = IN_CACHES.get(target.backend.name)
    caches = {} if waits is None else cache_bandwidths(target, again=again)
    return Basis(
        str(target), bandwidth or bandwidth_of(target), reached, caches=caches, waits=waits
    )


def chosen_basis(common: CommonOptions) -> Basis:
    """The basis on the target of ``--backend``, or on the best that works.

    Raises ``BackendUnavailable`` for a backend that is named and does not work.
    """
    from ptir.backend import registry

    if common.backend:
        return basis_of(registry.get(common.backend))
    try:
        return basis_of(registry.best().target)
    except BackendUnavailable as error:
        return Basis(problem=str(error))


def measured_shares(target: Target) -> Mapping[int, float]:
    """By the bits of weights, what decoding reaches of the bandwidth; nothing where unknown."""
    from ptir.runtime.catalog import REACHED

    return REACHED.get(target.backend.name, {}) if is_host(target) else {}


def _unmeasured(target: Target) -> str:
    where = target.backend.name if is_host(target) else f"{target.backend.name} on such a device"
    return f"nobody has measured which share of the bandwidth {where} reaches"
