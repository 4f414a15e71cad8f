"""How plain C, with the vector extensions of gcc and clang, spells what the generator writes.

Functions stand in the prelude, named after the op and what carries its types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptir.codegen.api import Argument, ChangingVectors, CLike, Spelling, clike, processor
from ptir.types import F32, I8, I32, U8, U32, DType
from ptir_backend_c import prelude

RECASTS: Final = {"u32": "bits_f32", "u64": "bits_f64", "f32": "float_u32", "f64": "float_u64"}
"""Functions that change the type of bits, by what they become."""
FOLDS: Final = frozenset((("add", "f32"), ("add", "i32"), ("add", "u32"), ("max", "i32")))
"""What lanes are combined with by functions (folds.h)."""


def _cast(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    if (dtype, of) == (I8, I32):
        return f"bytes_vi32({args[0]})"
    if (dtype, of) == (U8, I32):
        return f"(vu8)bytes_vi32({args[0]})"
    if dtype == F32 and of in (I8, U8):
        return f"floats_v{of}({args[0]})"
    if dtype in (I32, U32) and of in (I8, U8):
        return f"{'(vu32)' if dtype == U32 else ''}ints_v{of}({args[0]})"
    return f"__builtin_convertvector({args[0]}, {d.type(dtype, width)})"


def _gathered(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    type = d.type(dtype, width)
    if type in ("vi32", "vu32", "vf32"):
        return f"gathered_{type}({', '.join(args)})"
    return f"({type}){{{', '.join(args)}}}"


CALL: Final = "{op}_{v}{result}({args})"
CALLED: Final = (
    *("select", "max", "min", "splat", "by_power", "table_bytes"),
    *("dot_bytes", "dot_signed_bytes", "dot_bf16"),
    *("permute_bytes", "select_bytes", "bit_fields", "negate_bytes", "table_words"),
)
"""Ops on vectors that are functions of the prelude under their own name."""
BOTH: Final[dict[str, Spelling]] = {
    "narrow": "{name}_{v}f32({0})",
    "saturate": "saturated_{v}{operand}_{result}({0})",
}
SCALAR: Final[dict[str, Spelling]] = {
    **clike.SCALAR,
    **BOTH,
    "recast": lambda d, dtype, of, width, args: f"{RECASTS[dtype.name]}({args[0]})",
    "half_bits": "(unsigned short)bits_f16_f32({0})",
    "half_value": "wide_f16_f32({0})",
}
WIDE: Final[dict[str, Spelling]] = {
    **clike.WIDE,
    **BOTH,
    **dict.fromkeys(CALLED, CALL),
    "nearest": "nearest_v{operand}({0})",
    "cast": _cast,
    "mask": "__builtin_convertvector({0}, vi32)",
    "gathered": _gathered,
    "load": "load_v{stored}({0} + {1})",
    "load_bool": "(-__builtin_convertvector({0}, vi32))",
    "load_f16": "loaded_f16({0})",
    "load_bf16": "(vf32)(__builtin_convertvector({0}, vu32) << 16)",
    "store": "store_v{stored}({0} + {1}, {2});",
    "store_bool": "__builtin_convertvector({0} & 1, vu8)",
    "store_f16": "__builtin_convertvector(bits_f16_vf32({0}), vu16)",
    "store_bf16": "__builtin_convertvector(((vu32)({0}) >> 16), vu16)",
}


class PlainC(CLike):
    """C11 with vectors of 16 lanes."""

    name = "c"
    lanes = 16
    vector = "v{carrier}"
    ordered_extremes = True
    constant = "static const"
    changing = ChangingVectors("held_{0}", "hold_{0}({1})", "of_{0}({1})")
    call = CALL
    scalar_rows = SCALAR
    wide_rows = WIDE

    def __init__(self) -> None:
        self.dots = processor.dots()
        self.permutes_bytes = processor.permutes_bytes()
        self.permutes_words = processor.permutes_words()

    def reduce_lanes(self, op: str, dtype: DType, text: str) -> str | None:
        """``fold_add_vf32`` and others of folds.h, half of the lanes with the other half."""
        return f"fold_{op}_v{dtype.name}({text})" if (op, dtype.name) in FOLDS else None

    def looked_up(self, dtype: DType, buffer: str, places: str, factor: int) -> str | None:
        """``looked_up_vu32`` of dots.h; other elements are read one by one."""
        if dtype != U32:
            return None
        return f"looked_up_vu32({buffer}, {places} * {factor})"

    def prefetch(self, buffer: str, index: str) -> str:
        """Into the core's second cache: streams are longer than the first one."""
        return f"__builtin_prefetch({buffer} + {index}, 0, 2);"

    def kernel_with_preamble(
        self, name: str, arguments: Sequence[Argument], preamble: str, body: str
    ) -> str:
        """A function of the buffers' addresses and the workgroup's number.

        With a preamble, it asks for more workgroups (``turn`` of pool.c).
        """
        taken = "\n".join(
            f"  {self.pointer(argument)}const {argument.name} = buffers[{place}];"
            for place, argument in enumerate(arguments)
        )
        if not preamble:
            return f"void {name}(void *const *buffers, const int item) {{\n{taken}\n{body}\n}}"
        return (
            f"void {name}(void *const *buffers, int item, struct turn *turn) {{\n{taken}\n"
            f"{preamble}\n  do {{\n{body}\n  }} while ((item = turn->next(turn)) >= 0);\n}}"
        )

    def prelude(self) -> str:
        """What any kernel may use, and the functions of lanes that are folded or multiplied."""
        return prelude.prelude() + prelude.source("folds.h") + prelude.source("dots.h")
