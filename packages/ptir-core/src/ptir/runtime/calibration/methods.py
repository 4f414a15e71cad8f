"""**Table** of methods: what each does at a site with the inputs that its matrices meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from ptir.errors import QuantizationError
from ptir.params.parted import in_runs
from ptir.params.processors import usable_processors
from ptir.params.source import ParamSource
from ptir.runtime.calibration.folding import NOWHERE, Fold, fold_of
from ptir.runtime.calibration.inputs import SiteInputs
from ptir.runtime.calibration.program import Flow, Product
from ptir.runtime.calibration.record import Calibrated, Calibration
from ptir.runtime.calibration.scaled import ScaledSource
from ptir.weights import WeightFormat
from ptir.weights.awq import Weighed, clipping, searched
from ptir.weights.decode import decode
from ptir.weights.gptq import factor_of, gptq
from ptir.weights.quantizers import quantize

Array = np.ndarray[Any, Any]
SILENT: Final = "its inputs are 0 wherever the text is read"
UNFOLDED: Final = "nothing in front of it can be divided by scales of its inputs"
KEPT: Final = "what would be divided by scales of its inputs is to stay as it is"
USELESS: Final = "no scales of its inputs make errors less"


class Method(ABC):
    """One calibration: ``site`` is called in order, ``read`` gives what pieces compute with.

    ``formats`` are those of the matrices that will be quantized, ``axes`` the axes of the inputs of
    all. Only ``changeable`` parameters may get other values than they have.
    """

    def __init__(
        self,
        flow: Flow,
        source: ParamSource,
        formats: Mapping[str, WeightFormat],
        axes: Mapping[str, int],
        changeable: Collection[str],
        asked: Calibration,
    ) -> None:
        self.flow, self.source, self.formats, self.axes = flow, source, formats, axes
        self.changeable, self.asked = changeable, asked
        self.found = Calibrated(source)

    @abstractmethod
    def site(self, products: Sequence[Product], inputs: SiteInputs) -> None:
        """Calibrate the matrices of a site."""

    @abstractmethod
    def read(self, name: str) -> Array:
        """A parameter as f32, as what is behind it is to see it."""

    def floats(self, name: str) -> Array:
        """A parameter of the model as f32; raises ``QuantizationError`` unless it is finite."""
        found = np.array(self.source.read(name), np.float32)
        self.source.release(name)
        if not np.isfinite(found).all():
            raise QuantizationError(
                f"parameter {name!r}: a weight holds NaN or infinity; it cannot be quantized"
            )
        return found

    def wanted(self, products: Sequence[Product]) -> list[tuple[str, Product]]:
        """The matrices of products that are to be quantized, by name."""
        ports = self.flow.program.ports
        named = [(ports[port].name, one) for one in products for port in one.weights]
        return [(name, one) for name, one in named if name in self.formats]


class Gptq(Method):
    """Each matrix is rounded with its errors made up for; what is behind it sees it rounded."""

    def site(self, products: Sequence[Product], inputs: SiteInputs) -> None:
        """Matrices of one product, and of others with the same inputs, share their sum."""
        wanted = self.wanted(products)
        experts = wanted[0][1].experts
        weights = {name: _rows(self.floats(name), one) for name, one in wanted}
        parts: dict[str, list[Mapping[str, Array]]] = {name: [] for name in weights}
        for expert in range(experts):
            name, product = wanted[0]
            total, _, rows = inputs.sum_of(product, expert if experts > 1 else None, name)
            reached = rows > 0 and bool(np.diagonal(total).any())
            damping, act_order = self.asked.damping, self.asked.act_order
            with _naming(name):
                factor = factor_of(total, damping=damping, act_order=act_order) if reached else None
            for name in weights:
                count = len(weights[name]) // experts
                some = weights[name][expert * count : (expert + 1) * count]
                with _naming(name):
                    if factor is None:
                        self._unreached(name, expert, experts)
                        found = quantize(self.formats[name], some)
                    else:
                        found = gptq(self.formats[name], some, factor, usable_processors())
                parts[name].append(found)
        for name, every in parts.items():
            if name not in self.found.rounded:
                joined = {key: np.concatenate([one[key] for one in every]) for key in every[0]}
                self.found.arrays[name] = joined

    def _unreached(self, name: str, expert: int, experts: int) -> None:
        if experts == 1:
            self.found.rounded[name] = SILENT
        else:
            self.found.unreached.setdefault(name, []).append(expert)

    def read(self, name: str) -> Array:
        """Quantized, as the file will have it."""
        if name not in self.formats:
            return self.floats(name)
        format, axis = self.formats[name], self.axes.get(name, 1)
        if name in self.found.arrays:
            rows = decode(format, self.found.arrays[name])
        else:
            rows = rounded(format, np.moveaxis(self.floats(name), axis, -1), name)
        return np.moveaxis(rows, -1, axis)


class Awq(Method):
    """Inputs are scaled where that can be made up for in front of them; all see the model's own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.scales = ScaledSource(self.source)
        self.found.source = self.scales
        self._done: set[int] = set()

    def site(self, products: Sequence[Product], inputs: SiteInputs) -> None:
        """All products of the same inputs are scaled together, experts or not."""
        value = products[0].inputs
        if value in self._done:
            return
        self._done.add(value)
        together = tuple(one for one in self.flow.products if one.inputs == value)
        wanted = self.wanted(together)
        name = wanted[0][0]
        total, size, _ = inputs.sum_of(together[0], None, name)
        if not np.isfinite(total).all():
            raise QuantizationError(f"parameter {name!r}: the sum of its inputs overflows")
        if not size.any():
            self.found.rounded |= dict.fromkeys((name for name, _ in wanted), SILENT)
            return
        matrices = {
            name: Weighed(self.formats[name], _rows(self.floats(name), one), total)
            for name, one in wanted
        }
        with _naming(name):
            scales, why = self._scaled(together, list(matrices.values()), size)
        if why is not None:
            self.found.clipped |= dict.fromkeys(matrices, why)
        for name, one in matrices.items():
            with _naming(name):
                shares = clipping(one, scales, usable_processors())
            self.scales.clip(name, shares, self.axes.get(name, 1))
        self.found.adapted += matrices

    def _scaled(
        self, products: tuple[Product, ...], matrices: Sequence[Weighed], size: Array
    ) -> tuple[Array, str | None]:
        """Scales of inputs, folded into what is in front; 1 where there are none, and why."""
        none = np.ones(len(size), np.float32)
        fold = fold_of(self.flow, products)
        if fold is None:
            return none, UNFOLDED
        if not self._changes_only_what_may(products, fold):
            return none, KEPT
        shared = partial(_shared, tied=fold.tied)
        best = searched(matrices, size, shared, usable_processors())
        if not best.useful:
            return none, USELESS
        self._take(products, fold, best.scales)
        return best.scales, None

    def _changes_only_what_may(self, products: Sequence[Product], fold: Fold) -> bool:
        ports = {*fold.vectors, *fold.outputs, *(port for one in products for port in one.weights)}
        names = (self.flow.program.ports[port].name for port in ports)
        return all(name in self.changeable for name in names)

    def _take(self, products: Sequence[Product], fold: Fold, scales: Array) -> None:
        """Note what the parameters are multiplied with and divided by."""
        ports = self.flow.program.ports
        for one in products:
            for port in one.weights:
                self.scales.multiply(ports[port].name, scales, one.axis)
        for port, (channels, plus) in fold.vectors.items():
            self.scales.divide(ports[port].name, _by_channel(scales, channels), 0, plus)
        axes = {port: 1 - one.axis for one in self.flow.products for port in one.weights}
        for port, channels in fold.outputs.items():
            self.scales.divide(ports[port].name, _by_channel(scales, channels), axes[port])

    def read(self, name: str) -> Array:
        """As it is: scaled and divided, the model computes the same."""
        return self.floats(name)


def _rows(weight: Array, product: Product) -> Array:
    """A matrix as [outputs, inputs]."""
    return np.ascontiguousarray(np.moveaxis(weight, product.axis, -1))


def _shared(size: Array, tied: Array) -> Array:
    """Magnitudes of inputs, the mean of them for inputs that share a scale."""
    sums = np.bincount(tied, size, len(size))
    counts = np.bincount(tied, minlength=len(size))
    found: Array = (sums / np.maximum(counts, 1))[tied]
    return found


def _by_channel(scales: Array, channels: Array) -> Array:
    """The scale of each channel, 1 where there is none."""
    return np.where(channels == NOWHERE, np.float32(1), scales[channels])


def rounded(format: WeightFormat, weights: Array, name: str) -> Array:
    """Weights f32[outputs, inputs] rounded to nearest, as the file's reader finds them."""

    def run(some: slice) -> dict[str, Array]:
        with _naming(name):
            return {name: decode(format, quantize(format, weights[some]))}

    outputs, inputs = weights.shape
    return in_runs(outputs, inputs, run)[name]


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Errors of quantizing begin with the parameter."""
    try:
        yield
    except QuantizationError as error:
        raise QuantizationError(f"parameter {name!r}: {error}") from None


METHODS: Final[Mapping[str, type[Method]]] = {"gptq": Gptq, "awq": Awq}
"""By name, those that need a text; rounding to nearest needs none."""
