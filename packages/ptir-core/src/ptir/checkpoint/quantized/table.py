"""**Table** of the ways in which folders hold quantized weights: a row a ``quant_method``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ptir.checkpoint.quantized.bitsandbytes import KINDS, STATE, bitsandbytes
from ptir.checkpoint.quantized.compressed import compressed
from ptir.checkpoint.quantized.fields import Fields
from ptir.checkpoint.quantized.floats import fp8
from ptir.checkpoint.quantized.integers import awq, gptq, mlx
from ptir.checkpoint.quantized.microscaled import mxfp4
from ptir.checkpoint.quantized.tensors import ModuleTensors, StoredWeight


@dataclass(frozen=True)
class Method:
    """A way: whoever has one of ``marks`` beside it is a quantized module.

    ``tensors`` are those that such a module may have besides (and ``dropped`` those of
    activations, which stay floats); ``stored`` is how its weight lies, for people; ``weight``
    checks all of them and gives it. ``ignored`` are the keys that list modules which stay floats.
    """

    marks: tuple[str, ...]
    tensors: tuple[str, ...]
    stored: str
    weight: Callable[[Fields, ModuleTensors], StoredWeight]
    ignored: tuple[str, ...] = ("modules_to_not_convert",)
    dropped: tuple[str, ...] = ()
    joint: str = "."
    """What stands between a module and these names."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Every tensor that a quantized module may have, but its bias."""
        return (*self.marks, *self.tensors, *self.dropped)


FP8: Final = Method(
    ("weight_scale_inv", "weight_scale"),
    ("weight",),
    "[outputs, inputs]",
    fp8,
    ("modules_to_not_convert", "ignored_layers"),
    ("input_scale", "activation_scale", "input_scale_ub"),
)

METHODS: Final[dict[str, Method]] = {
    "awq": Method(("qweight", "qzeros", "scales"), (), "[inputs, outputs / 8]", awq),
    "gptq": Method(
        ("qweight", "qzeros", "scales"), ("g_idx",), "[inputs * bits / 32, outputs]", gptq
    ),
    "mlx": Method(("scales",), ("weight", "biases"), "[outputs, inputs * bits / 32]", mlx, ()),
    "compressed-tensors": Method(
        ("weight_packed", "weight_scale"),
        ("weight", "weight_zero_point", "weight_shape", "weight_g_idx", "weight_global_scale"),
        "[outputs, inputs * bits / 32 or as they are]",
        compressed,
        ("ignore",),
        ("input_scale", "input_zero_point", "input_global_scale"),
    ),
    "bitsandbytes": Method(
        ("SCB", "weight.absmax", *(STATE + kind for kind in KINDS)),
        (
            *("weight", "weight_format", "weight.quant_map"),
            *("weight.nested_absmax", "weight.nested_quant_map"),
        ),
        "a line of all weights; int8: [outputs, inputs]",
        bitsandbytes,
        ("llm_int8_skip_modules",),
    ),
    "mxfp4": Method(
        ("blocks", "scales"), (), "[experts, outputs, inputs / 32, 16]", mxfp4, joint="_"
    ),
    "fp8": FP8,
    "fbgemm_fp8": FP8,
}
"""By ``quant_method``; MLX's ``quantization`` names none."""
