"""What ``--fast`` asks for: dot implementations by the format of the weights, where they gain."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ptir.backend.contract import Target
from ptir.backend.interpreter import query_of
from ptir.errors import UnsupportedError, UsageError
from ptir.functional.rounded import FAST
from ptir.ir.attributes import Attributes
from ptir.ops.implementations import functional
from ptir.params.quantized import quantization
from ptir.types import BF16, F32, U32, TensorType
from ptir.weights import QUANTIZERS
from ptir.weights.tables import has_floats
from ptir.weights.words import words_for

if TYPE_CHECKING:  # it needs NumPy
    from ptir.weights.affine_form import AffineForm

WORDS: Final = ("quantized_linear", "int8")
"""What is chosen for weights that a file has in blocks, held as words."""
FILTERS: Final = ("conv2d", "int8")
"""What is chosen for convolutions of images beside it."""
CONVOLUTIONS: Final = "groups=1,O>=16"
"""Those that gain: of all channels, for as many outputs as a vector has."""
ROWS: Final = 16
OUTPUTS: Final = 64
INPUTS: Final = 64
"""Sizes of the small call that a device is asked about."""

Call: TypeAlias = tuple[tuple[TensorType, ...], Attributes]
"""The operands' types and the attributes of a functional."""


def fast_policies(
    held: Collection[str | AffineForm], target: Target, *, filters: bool = False
) -> dict[str, str]:
    """The overrides of a model in these formats; see docs/reference/accuracy.md for what they lose.

    A format is the name of a quantization or of a storage type, or the form of weights in words.
    With weights of whole numbers the ``filters`` of a model that has some become bytes as well.
    Beside blocks held as words all other products stay exact, of which it warns. Raises
    ``UsageError`` for formats without such an implementation and for several kinds of floats, and
    ``UnsupportedError`` where the device has no instruction for it.
    """
    floats = {one for one in held if not isinstance(one, str) and has_floats(one.table)}
    names = sorted({one for one in held if isinstance(one, str)} | {f.format.name for f in floats})
    blocks = sorted({f.format.name for f in held if not isinstance(f, str) and f not in floats})
    exact = [one for one in names if blocks and FAST.get(one) != WORDS]
    if exact:
        warnings.warn(
            f"fast: products with weights in {'+'.join(exact)} stay exact; activations are rounded"
            f" for those in {'+'.join(blocks)}",
            stacklevel=3,
        )
        held = [one for one in held if one not in exact and one not in floats]
        names = [one for one in names if one not in exact]
    choices = {FAST.get(one) for one in names} | ({WORDS} if blocks else set())
    if None in choices or len(choices) != 1:
        raise UsageError(
            f"fast: weights in {'+'.join(names)} have no dot implementation; leave --fast"
            f" out, or take those in {', '.join(FAST)} (--dtype bf16, --quant int8, --quant int4)"
        )
    name, implementation = next(filter(None, choices))
    for one in held:
        _check_device(name, implementation, _small_call(one), target)
    found = {name: f"force={implementation}"}
    if filters and (name, implementation) == WORDS:
        _check_device(*FILTERS, _small_convolution(), target)
        functional_, as_bytes = FILTERS
        found[f"{functional_}[{CONVOLUTIONS}]"] = f"force={as_bytes}"
    return found


def _check_device(name: str, implementation: str, call: Call, target: Target) -> None:
    """Refuse a device that computes an implementation's lowering op by op."""
    lowered = functional(name).implementations[implementation].lower(*call)
    for instruction in lowered.instructions:
        if instruction.op != "composite":
            continue
        reason = target.backend.refusal(query_of(lowered, instruction), target.device)
        if reason is not None:
            raise UnsupportedError(
                f"fast: {target.backend.name} on {target.device.name!r} gains nothing from"
                f" {name}={implementation} ({reason}); leave --fast out, or compute its numbers"
                f" with --override {name}=force={implementation}"
            )


def _small_convolution() -> Call:
    """A call of ``conv2d``: one small image."""
    around = {"strides": (1, 1), "low": (1, 1), "high": (1, 1), "dilation": (1, 1)}
    image = TensorType(F32, (1, ROWS, ROWS, ROWS))
    how = Attributes({**around, "groups": 1, "layout": "oihw"})
    return (image, TensorType(F32, (OUTPUTS, ROWS, 3, 3))), how


def _small_call(format: str | AffineForm) -> Call:
    """A call of the functional: a few rows, outputs and groups."""
    if isinstance(format, str) and format not in QUANTIZERS:
        x = TensorType(F32, (ROWS, INPUTS))
        return (x, TensorType(BF16, (OUTPUTS, INPUTS))), Attributes({"layout": "oi"})
    how: dict[str, Any] = {"layout": "oi"}
    if isinstance(format, str):
        named = quantization(format)
        how |= {"bits": named.bits, "group": named.group}
    else:
        how |= {"bits": format.bits, "group": format.group, "table": format.table}
    inputs = max(INPUTS, how["group"])
    words = TensorType(U32, (OUTPUTS, words_for(inputs, how["bits"])))
    groups = TensorType(BF16, (OUTPUTS, inputs // how["group"]))
    return (TensorType(F32, (ROWS, inputs)), words, groups, groups), Attributes(how)
