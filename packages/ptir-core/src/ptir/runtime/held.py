"""How a model holds its parameters: as floats, in the words of their blocks, or quantized now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ptir.backend.contract import Target
from ptir.backend.interpreter import query_of
from ptir.capture import Tensor
from ptir.capture.creation import parameter
from ptir.errors import UsageError
from ptir.functional.linear import QuantizedWeight
from ptir.ir import Block
from ptir.ir.attributes import Attributes
from ptir.ops.implementations import functional
from ptir.params.quantized import QuantizedSource, quantization, quantized_names, zero_point
from ptir.params.source import BlockSource, ParamSource, stored_formats
from ptir.params.storage import STORAGE, TypeRule
from ptir.params.store import ParamStore
from ptir.params.unstacked import EXPERTS
from ptir.types import F32, I32, DType, TensorType
from ptir.types import dtype as dtype_named

if TYPE_CHECKING:
    from ptir.weights.affine_form import AffineForm


@dataclass(frozen=True)
class HeldParameters:
    """What a model's parameters become, before any is read.

    ``source`` has the parameters and, for each weight of ``parts``, what stands for it; those keep
    their types (``keep_dtype``). ``weight`` makes the weight called so of its parts in a store, and
    ``bits`` says how wide the values in its words are.
    """

    source: ParamSource
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bits: Mapping[str, int] = field(default_factory=dict)
    keep_dtype: frozenset[str] = frozenset()
    weight: Callable[[ParamStore, str], QuantizedWeight] | None = None

    def resolve(self, store: ParamStore, name: str) -> Tensor | QuantizedWeight:
        """The parameter called ``name``, of a store of ``source``."""
        if self.weight is None or name not in self.parts:
            return parameter(store, name)
        return self.weight(store, name)

    def nbytes(self, name: str, types: TypeRule) -> int:
        """Bytes of a parameter, as it is held."""
        if name in self.parts:
            return sum(self.source.type(part).nbytes for part in self.parts[name])
        return types(self.source.type(name)).nbytes

    def token_bytes(self, module: Any, types: TypeRule, working: float = 1.0) -> dict[int, int]:
        """Bytes that the decoding of a token reads, by the bits that weights are held in.

        It reads all but tables that one row is taken of, and of experts those ``working`` of all.
        """
        tables = module.block_weights().keys() - module.weights().keys()
        found: Counter[int] = Counter()
        for name in module.parameters().keys() - tables:
            bits = self.bits.get(name) or types(self.source.type(name)).dtype.bits
            nbytes = self.nbytes(name, types)
            found[bits] += int(nbytes * working) if EXPERTS in name else nbytes
        return dict(sorted(found.items()))


def types_taken(target: Target) -> frozenset[str]:
    """The types of ``STORAGE`` whose matrices a target looks rows up in and multiplies with."""
    return frozenset(name for name in STORAGE if _takes(target, dtype_named(name)))


def _takes(target: Target, dtype: DType) -> bool:
    """Whether the backend refuses nothing of what the two functionals are made of."""
    matrix, rows = TensorType(dtype, (8, 4)), TensorType(I32, (2,))
    calls = (
        _lowered("embedding", (matrix, rows), {}),
        _lowered("linear", (TensorType(F32, (2, 4)), matrix), {"layout": "oi"}),
    )
    return all(
        target.backend.refusal(query_of(block, one), target.device) is None
        for block in calls
        for one in block.instructions
    )


def _lowered(name: str, operands: tuple[TensorType, ...], attributes: dict[str, str]) -> Block:
    return functional(name).implementations["portable"].lower(operands, Attributes(attributes))


def held_parameters(
    module: Any, source: ParamSource, quant: str | None, where: str
) -> HeldParameters:
    """Parameters as they are, in words where they are stored in blocks, or quantized when read.

    Errors of weights in blocks begin with ``where``.
    """
    if quant is not None:
        return _quantized(module, source, quant)
    forms = packed_forms(module, source)
    if not forms or not isinstance(source, BlockSource):
        return HeldParameters(source)
    return _packed(source, forms, where)


def _packed(
    source: BlockSource, forms: Mapping[str, tuple[AffineForm, int]], where: str
) -> HeldParameters:
    from ptir.params.packed import PackedSource, part_name, parts_of

    packed = PackedSource(source, forms, where)
    names = {
        name: {part: part_name(name, form, part) for part in parts_of(form)}
        for name, (form, _) in forms.items()
    }

    def weight(store: ParamStore, name: str) -> QuantizedWeight:
        form, axis = forms[name]
        held = {part: parameter(store, called) for part, called in names[name].items()}
        return in_words(form, axis, held)

    parts = {name: tuple(called.values()) for name, called in names.items()}
    bits = {name: form.word_bits for name, (form, _) in forms.items()}
    return HeldParameters(packed, parts, bits, packed.keep_dtype, weight)


def in_words(form: AffineForm, axis: int, held: Mapping[str, Tensor]) -> QuantizedWeight:
    """The weight whose words, scales and minima, by their names in a form, are ``held``."""
    return QuantizedWeight(
        axis=axis,
        bits=form.bits,
        group=form.group,
        zero=form.zero,
        table=form.table,
        factor=form.scale.factor,
        code=form.scale.code,
        sharing=form.sharing,
        vectors=form.vectors,
        **held,
    )


def packed_forms(module: Any, source: ParamSource) -> dict[str, tuple[AffineForm, int]]:
    """The weights whose blocks become words, and the axis of their inputs.

    What else is stored in blocks is expanded to floats when it is read.
    """
    stored = stored_formats(source)
    if not stored:
        return {}
    from ptir.weights.affine_form import affine_form

    axes, products = module.block_weights(), module.weights()
    found: dict[str, tuple[AffineForm, int]] = {}
    for name, format in stored.items():
        looked_up = format.order is not None and name not in products
        form = None if name not in axes or looked_up else affine_form(format)
        if form is not None:
            found[name] = form, axes[name]
    return found


def _quantized(module: Any, source: ParamSource, quant: str) -> HeldParameters:
    how, weights = quantization(quant), module.weights()
    stored = {format.name for format in stored_formats(source).values()}
    if stored:
        raise UsageError(
            f"quant {quant!r}: the file has weights in {', '.join(sorted(stored))} already; leave"
            " --quant out"
        )
    quantized = QuantizedSource(source, how, weights)
    names = {name: quantized_names(name, how) for name in weights}

    def weight(store: ParamStore, name: str) -> QuantizedWeight:
        both = names[name]
        words, scale = parameter(store, both.words), parameter(store, both.scale)
        return QuantizedWeight(words, scale, weights[name], how.bits, how.group, zero_point(how))

    parts = {name: (both.words, both.scale) for name, both in names.items()}
    bits = dict.fromkeys(names, how.bits)
    return HeldParameters(quantized, parts, bits, quantized.keep_dtype, weight)
