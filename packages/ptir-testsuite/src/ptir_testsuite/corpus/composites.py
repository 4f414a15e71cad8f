"""The calls of composites that are checked: operand types, values and attributes, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptir.ir.attributes import Attributes
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ops.implementations import known_lowerings
from ptir.types import DTYPES, I8, I32, TensorType, dtype_of, parse_type
from ptir_testsuite.corpus.edges import edges
from ptir_testsuite.corpus.pairs import covering
from ptir_testsuite.corpus.values import Draws, draw
from ptir_testsuite.oracles.floats import Array, stored

E4M3, E5M2 = DTYPES["f8e4m3fn"], DTYPES["f8e5m2"]
Operand = str | list[Any]
"""A type as text, drawn plainly (``f32[2,3]``), or i32 values that steer."""


@dataclass(frozen=True)
class CompositeCall:
    """One call of a functional, or of a part of implementations, by its number among its calls."""

    name: str
    number: int

    @property
    def id(self) -> str:
        """How the call is named in reports."""
        return f"composite-{self.name}-{self.number}"

    @property
    def row(self) -> tuple[tuple[Operand, ...], Mapping[str, Any]]:
        """Operands and attributes."""
        return CALLS[self.name][self.number]

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The operands' types; numbers are of i32."""
        given = (o.partition(" ")[0] if isinstance(o, str) else o for o in self.row[0])
        return tuple(
            parse_type(o) if isinstance(o, str) else TensorType(I32, np.shape(o)) for o in given
        )

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The names of the operands' dtypes, each once, in order."""
        return tuple(dict.fromkeys(type.dtype.name for type in self.types))

    @property
    def call(self) -> str:
        """The call for a reader."""
        return f"{self.name}({', '.join(map(str, self.types))})"

    def arrays(self, letter: str = "A") -> list[Array]:
        """The operands, the same every time; of another letter others of the same kinds."""
        operands, attributes = self.row
        other = () if letter == "A" else (letter,)
        draws = Draws("composite", self.name, self.number, Attributes(attributes).text, *other)
        return [self._array(operand, draws, bool(other)) for operand in operands]

    def _array(self, operand: Operand, draws: Draws, other: bool) -> Array:
        if not isinstance(operand, str):
            given = np.array(operand, np.int32)
            return np.roll(given, 1) if other else given
        text, _, special = operand.partition(" ")
        array = draw(parse_type(text), "plain", draws, 4)
        if special == "positive":
            array = np.abs(array)
        elif special == "tiny":
            array = np.abs(array) * np.float32(2.0**-20)
        elif special == "masked":
            array[..., ::3] = -np.inf
            array[0] = -np.inf
        elif special == "nan tail":
            array[:, :, -1] = np.nan
        elif special == "offset":
            array = array + np.float32(100)
        elif special == "far":
            array = array + np.float32(4096)
        elif special == "small":
            array = array * np.float32(2.0**-10)
        elif special == "apart":
            rows = np.arange(len(array), dtype=np.float32).reshape(-1, *(1,) * (array.ndim - 1))
            array = array + 200 * rows
        elif special == "edges":
            ends = np.resize(edges(dtype_of(array)), array.shape)
            array = stored(np.roll(ends, 1) if other else ends, dtype_of(array), array.shape)
        elif special == "unit":
            lengths = np.sqrt(np.square(array).sum(-1, keepdims=True))
            array = array / np.maximum(lengths, np.float32(1e-3))
        elif special == "alike":
            array = np.full(array.shape, array.shape[-1] ** -0.5, np.float32)
        elif special == "decays":
            shares = np.arange(array.size, dtype=np.float32).reshape(array.shape) * 7 % 32 / 31
            array = -20 * (1 - shares if other else shares) ** 4
        elif special == "shares":
            array = np.abs(array) / (1 + np.abs(array))
        elif special == "bits":
            array = draw(parse_type(text), "bits", draws)
        elif special == "small bytes":  # as floats of 8 bits all below 2
            array = draw(parse_type(text), "bits", draws) & np.uint32(0xBFBFBFBF)
        return array

    def program(self, arrays: list[Array]) -> Program:
        """The call as a program of one composite with its portable lowering attached."""
        types = tuple(TensorType(dtype_of(a), a.shape) for a in arrays)
        attributes = Attributes(self.row[1])
        block = known_lowerings(self.name)[0](types, attributes)
        named = Attributes({"name": self.name, **self.row[1]})
        numbers = tuple(range(len(types)))
        whole = Instruction("composite", numbers, named, block.output_types, (block,))
        outputs = tuple(range(len(types), len(types) + len(block.outputs)))
        return Program(Block(types, (whole,), outputs), tuple(Port(f"x{i}") for i in numbers))


_ATTENTION: Final = {"scale": 0.25, "causal": True, "window": None, "soft_cap": None}
_QKV: Final = ("f32[2,4,3,8]", "f32[2,2,7,8]", "f32[2,2,7,8]")
_CONV: Final = {
    "strides": (1, 1),
    "low": (0, 0),
    "high": (0, 0),
    "dilation": (1, 1),
    "groups": 1,
    "layout": "hwio",
}
_POOL: Final = {"window": (2, 3), "strides": (2, 1), "low": (0, 0), "high": (0, 0)}
_RULE: Final = ("f32[2,2,5,8]", "f32[2,2,5,8] unit", "f32[2,4,5,3]", "f32[2,4,5] decays")
_QUARTERS: Final = tuple((n * n - 60) / 4 for n in range(16))
"""Floats that are not whole, the least of them below 0."""
_ROPE: Final = {"theta": 10000.0, "layout": "half", "rotary": 8}

CALLS: Final[dict[str, list[tuple[tuple[Operand, ...], Mapping[str, Any]]]]] = {
    "linear": [
        (("f32[3,33]", "f32[33,17]", "f32[17]"), {"layout": "io"}),
        (("f32[2,5,64]", "f32[40,64]"), {"layout": "oi"}),
        (("f32[1,129]", "f32[129,65]", "f32[65]"), {"layout": "io"}),
        (("f32[4,33]", "bf16[33,17]", "f32[17]"), {"layout": "io"}),
        (("f32[4,33]", "f16[17,33]"), {"layout": "oi"}),
        (("f32[0,8]", "f32[8,4]", "f32[4]"), {"layout": "io"}),
        (("f32[2,50]", "bf16[50,70]", "f32[70]"), {"layout": "io"}),
        (("f32[12,64]", "f16[100,64]"), {"layout": "oi"}),
        (("f32[17,96]", "f32[200,96]", "f32[200]"), {"layout": "oi"}),
    ],
    "embedding": [
        (("f32[7,5]", [[0, 6, 3], [-1, 7, 2**31 - 1]]), {}),
        (("bf16[3,33]", [2, 0, -(2**31)]), {}),
    ],
    "gelu": [
        (("f32[7,33]",), {"approximate": "none"}),
        (("f32[7,33]",), {"approximate": "tanh"}),
        (("f32[600] edges",), {"approximate": "none"}),
        (("f32[600] edges",), {"approximate": "tanh"}),
    ],
    "silu": [(("f32[1031]",), {}), (("f32[]",), {}), (("f32[600] edges",), {})],
    "swiglu": [(("f32[3,65]", "f32[3,65]"), {}), (("f32[600] edges", "f32[600]"), {})],
    "layer_norm": [
        (("f32[5,33]", "f32[33]", "f32[33]"), {"epsilon": 1e-5}),
        (("f32[2,3,257] offset", "f32[257]", "f32[257]"), {"epsilon": 1e-5}),
        (("f32[4,1]", "f32[1]", "f32[1]"), {"epsilon": 1e-5}),
        (("f32[5,33] small", "f32[33]", "f32[33]"), {"epsilon": 1e-5}),
        (("f32[5,33] far", "f32[33]", "f32[33]"), {"epsilon": 1e-5}),
    ],
    "rms_norm": [
        (("f32[5,33]", "f32[33]"), {"epsilon": 1e-6}),
        (("f32[2,3,257]", "f32[257]"), {"epsilon": 1e-5}),
        (("f32[5,33] small", "f32[33]"), {"epsilon": 1e-5}),
        (("f32[5,33] far", "f32[33]"), {"epsilon": 1e-5}),
    ],
    "batch_norm": [
        (
            ("f32[2,3,3,5]", "f32[5]", "f32[5]", "f32[5]", "f32[5] positive"),
            {"epsilon": 1e-5},
        ),
        (
            ("f32[2,3,3,5] small", "f32[5]", "f32[5]", "f32[5] small", "f32[5] tiny"),
            {"epsilon": 1e-5},
        ),
    ],
    "conv2d": [
        (("f32[2,7,5,3]", "f32[3,2,3,4]", "f32[4]"), _CONV),
        (("f32[1,7,6,4]", "f32[6,2,3,3]"), _CONV | {"layout": "oihw", "groups": 2}),
        (
            ("f32[1,9,8,2]", "bf16[3,3,2,5]"),
            _CONV | {"strides": (2, 3), "low": (1, 0), "high": (2, 1), "dilation": (2, 1)},
        ),
        (("f32[2,5,5,6]", "f32[3,3,1,6]", "f32[6]"), _CONV | {"groups": 6, "low": (1, 1)}),
    ],
    "convolution_of_bytes": [
        (
            ("u8[2,7,6,8] bits", "i8[18,72] bits"),
            {"window": (3, 3), "strides": (1, 1), "dilation": (1, 1)},
        ),
        (
            ("u8[1,9,8,4] bits", "i8[40,24] bits"),
            {"window": (2, 3), "strides": (2, 1), "dilation": (3, 2)},
        ),
        (
            ("u8[2,3,3,5] bits", "i8[3,5] bits"),
            {"window": (1, 1), "strides": (2, 2), "dilation": (1, 1)},
        ),
    ],
    "max_pool2d": [
        (("f32[2,5,7,3]",), _POOL | {"dilation": (1, 1)}),
        (("f32[1,6,6,2]",), _POOL | {"dilation": (2, 1), "low": (1, 0), "high": (0, 1)}),
    ],
    "avg_pool2d": [
        (("f32[2,5,7,3]",), _POOL | {"count_include_pad": True, "low": (1, 1)}),
        (("f32[2,5,7,3]",), _POOL | {"count_include_pad": False, "low": (1, 1), "high": (1, 0)}),
    ],
    "quantized_linear": [
        (
            ("f32[3,24]", "u32[5,3] bits", "f32[5,3]", "f32[5,3]", "f32[5]"),
            {"bits": 4, "group": 8, "layout": "oi"},
        ),
        (
            ("f32[2,2,32]", "u32[7,3] bits", "f16[7,2]", "bf16[7,2]"),
            {"bits": 3, "group": 16, "layout": "oi"},
        ),
        (
            ("f32[5,64]", "u32[16,33] bits", "f32[2,33]", "f32[2,33]"),
            {"bits": 8, "group": 32, "layout": "io"},
        ),
        (
            ("f32[1,128]", "u32[70,16] bits", "f32[70,4]", "f32[70,4]", "f32[70]"),
            {"bits": 4, "group": 32, "layout": "oi"},
        ),
        (
            ("f32[9,64]", "u32[48,16] bits", "f32[48,2]", "f32[48,2]"),
            {"bits": 8, "group": 32, "layout": "oi"},
        ),
        (
            ("f32[1,64]", "u32[96,12] bits", "f32[96,4]", "f32[96,4]", "f32[96]"),
            {"bits": 6, "group": 16, "layout": "oi"},
        ),
        (
            ("f32[12,64]", "u32[10,40] bits", "f32[2,40]", "f32[2,40]"),
            {"bits": 5, "group": 32, "layout": "io"},
        ),
        (
            ("f32[1,64]", "u32[40,8] bits", "f32[40,2]", "f32[40,2]"),
            {"bits": 4, "group": 32, "layout": "oi", "table": tuple(range(1, 256, 16))},
        ),
        *(
            (
                (f"f32[{rows},64]", "u32[48,8] bits", "f32[48,4]", "f32[48,4]"),
                {"bits": 4, "group": 16, "layout": "oi", "table": _QUARTERS},
            )
            for rows in (1, 12)
        ),
        *(
            (
                (f"f32[{rows},64]", f"u32[40,16] {special}", "f32[40,2]", "f32[40,2]"),
                {"bits": 8, "group": 32, "layout": "oi", "table": table},
            )
            for rows in (1, 12)
            for table, special in ((I8, "bits"), (E4M3, "small bytes"), (E5M2, "small bytes"))
        ),
    ],
    "expert_linear": [
        (("f32[2,33]", "f32[51,33]", [[2, 0], [1, -4]]), {"experts": 3}),
        (("f32[1,2,64]", "bf16[128,64]", [[3, 1]]), {"experts": 4}),
        (("f32[5,2,40]", "f16[96,40]", [[1, 2], [2, 0], [2, 9], [1, 2], [2, 1]]), {"experts": 3}),
        (("f32[1,64]", "f32[160,64]", [[4, 0, 2]]), {"experts": 5}),
        (("f32[12,32]", "bf16[64,32]", [[n % 2] for n in range(12)]), {"experts": 2}),
        (("f32[0,8]", "f32[6,8]", "i32[0,2]"), {"experts": 2}),
    ],
    "quantized_expert_linear": [
        (
            ("f32[1,64]", "u32[128,8] bits", "f32[128,2]", "f32[128,2]", [[3, 1]]),
            {"experts": 4, "bits": 4, "group": 32},
        ),
        (
            ("f32[2,2,64]", "u32[96,12] bits", "f16[96,4]", "f16[96,4]", [[0, 2], [2, 1]]),
            {"experts": 3, "bits": 6, "group": 16},
        ),
        (
            ("f32[19,32]", "u32[64,8] bits", "bf16[64,1]", "bf16[64,1]")
            + ([[n % 2, (n + 1) % 2] for n in range(19)],),
            {"experts": 2, "bits": 8, "group": 32},
        ),
        (
            ("f32[1,2,64]", "u32[96,8] bits", "f32[96,2]", "f32[96,2]", [[5, 0]]),
            {"experts": 6, "bits": 4, "group": 32, "table": tuple(range(1, 256, 16))},
        ),
        (
            ("f32[1,2,64]", "u32[96,16] small bytes", "f32[96,2]", "f32[96,2]", [[5, 0]]),
            {"experts": 6, "bits": 8, "group": 32, "table": E4M3},
        ),
        (
            ("f32[3,24]", "u32[15,3] bits", "f32[15,3]", "f32[15,3]", [[2], [0], [2]]),
            {"experts": 3, "bits": 4, "group": 8},
        ),
    ],
    "softmax": [
        (("f32[5,33]",), {"axis": 1}),
        (("f32[3,4,5]",), {"axis": 0}),
        (("f32[4,9] masked",), {"axis": 1}),
        (("f32[2,300] offset",), {"axis": 1}),
        (("f32[5,33] apart",), {"axis": 1}),
        (("f32[5,4,3] apart",), {"axis": 1}),
        (("f32[5,33] small",), {"axis": 1}),
    ],
    "rope": [
        (("f32[2,3,4,8]", [[0, 1, 2, 3], [5, 900, 7, 8]]), _ROPE),
        (("f32[1,2,3,8]", [[9, 1, 0]]), _ROPE | {"layout": "interleaved", "rotary": 6}),
        (("f32[2,2,3,8]", [[4, 0, 5], [1, 70, 3]], "f32[4]"), _ROPE),
        (
            ("f32[1,3,2,8]", [[4, 11]], "f32[2]"),
            _ROPE | {"layout": "interleaved", "rotary": 4},
        ),
    ],
    "cache_update": [
        (("f32[3,2,6,4]", "f32[3,2,3,4]", [0, 4, -1], [3, 3, 3]), {}),
        (("f32[3,2,6,4]", "f32[3,2,3,4]", [2, 6, 1], [0, 2, 1]), {}),
        (("f16[2,2,5,17]", "f16[2,2,2,17]", [1, 4], [2, 2]), {}),
        (("bf16[2,2,5,17]", "bf16[2,2,1,17]", [0, 3], [1, 1]), {}),
    ],
    "causal_conv1d": [
        (("f32[3,5,6]", "f32[6,4]", "f32[3,3,6]", [5, 0, 2], "f32[6]"), {}),
        (("f32[2,1,33]", "f32[33,3]", "f32[2,2,33]", [1, 0]), {}),
        (("f32[2,3,17]", "bf16[17,4]", "f32[2,3,17]", [-1, 9]), {}),
        (("f32[2,4,3]", "f32[3,1]", "f32[2,0,3]", [4, 1]), {}),
    ],
    "gated_delta_rule": [
        ((*_RULE, "f32[2,4,5] shares", "f32[2,4,8,3]", [5, 3]), {}),
        ((*_RULE, "f32[2,4,5] shares", "f32[2,4,8,3]", [0, 9]), {}),
        (
            (
                *("f32[2,1,1,16]", "f32[2,1,1,16] unit", "f32[2,3,1,20]", "f32[2,3,1] decays"),
                *("f32[2,3,1] shares", "f32[2,3,16,20]", [0, 1]),
            ),
            {},
        ),
        (
            (
                *("f32[1,1,70,16]", "f32[1,1,70,16] unit", "f32[1,2,70,4]", "f32[1,2,70] decays"),
                *("f32[1,2,70] shares", "f32[1,2,16,4]", [69]),
            ),
            {},
        ),
        (
            (
                *("f32[1,1,66,9]", "f32[1,1,66,9] alike", "f32[1,1,66,5]", "f32[1,1,66] decays"),
                *("f32[1,1,66] shares", "f32[1,1,9,5]", [66]),
            ),
            {},
        ),
    ],
    "gated_linear_attention": [
        ((*_RULE, "f32[2,4,8,3]", [5, 3]), {}),
        ((*_RULE, "f32[2,4,8,3]", [0, 9]), {}),
        (
            (
                *("f32[2,1,1,16]", "f32[2,1,1,16]", "f32[2,3,1,20]", "f32[2,3,1] decays"),
                *("f32[2,3,16,20]", [0, 1]),
            ),
            {},
        ),
        (
            (
                *("f32[1,2,70,9]", "f32[1,2,70,9]", "f32[1,4,70,5]", "f32[1,4,70] decays"),
                *("f32[1,4,9,5]", [69]),
            ),
            {},
        ),
    ],
    "attention": [
        ((*_QKV, [0, 4], [7, 7]), _ATTENTION),
        ((*_QKV, [0, 4], [3, 6]), _ATTENTION | {"window": 2}),
        ((*_QKV, [0, 2], [7, 5]), _ATTENTION | {"causal": False, "soft_cap": 2.0}),
        ((*_QKV, [0, 4], [0, 7]), _ATTENTION),
        (
            ("f32[2,4,3,8]", "f32[2,2,7,8] nan tail", "f32[2,2,7,8] nan tail", [0, 3], [6, 5]),
            _ATTENTION,
        ),
        (("f32[1,2,1,16]", "f32[1,2,65,16]", "f32[1,2,65,16]", [64], [65]), _ATTENTION),
    ],
}

# --- batches ---

BATCHED: Final[dict[str, tuple[int, ...]]] = {
    "linear": (0,),
    "quantized_linear": (0,),
    "embedding": (1,),
    "expert_linear": (0, 2),
    "quantized_expert_linear": (0, 4),
    "gelu": (0,),
    "silu": (0,),
    "swiglu": (0, 1),
    "layer_norm": (0,),
    "rms_norm": (0,),
    "batch_norm": (0,),
    "softmax": (0,),
    "conv2d": (0,),
    "convolution_of_bytes": (0,),
    "max_pool2d": (0,),
    "avg_pool2d": (0,),
    "rope": (0, 1),
    "cache_update": (0, 1, 2, 3),
    "attention": (0, 1, 2, 3, 4),
    "causal_conv1d": (0, 2, 3),
    "gated_delta_rule": (0, 1, 2, 3, 4, 5, 6),
    "gated_linear_attention": (0, 1, 2, 3, 4, 5),
}
"""The operands whose first axis is a batch, in which no row knows of the others."""

# --- pairs of attributes ---

WEIGHTS: Final = {
    ("hwio", 1): "f32[3,2,4,6]",
    ("hwio", 2): "f32[3,2,2,6]",
    ("hwio", 4): "f32[3,2,1,4]",
    ("oihw", 1): "f32[6,4,3,2]",
    ("oihw", 2): "f32[6,2,3,2]",
    ("oihw", 4): "f32[4,1,3,2]",
}
"""The weight of a convolution of four channels, by its layout and groups."""

CONVOLVED: Final = {
    "strides": ((1, 1), (2, 1), (1, 3)),
    "low": ((0, 0), (1, 2)),
    "high": ((0, 0), (2, 1)),
    "dilation": ((1, 1), (2, 1), (1, 2)),
    "groups": (1, 2, 4),
    "layout": ("hwio", "oihw"),
}
ATTENDED: Final = {
    "scale": (0.25, 1.5),
    "causal": (True, False),
    "window": (None, 1, 3),
    "soft_cap": (None, 2.0),
    "steps": (([0, 4], [7, 7]), ([4, 2], [3, 7]), ([1, 0], [0, 5])),
}

CALLS["conv2d"] += [
    (("f32[2,8,7,4]", WEIGHTS[chosen["layout"], chosen["groups"]]), chosen)
    for chosen in covering(CONVOLVED)
]
CALLS["attention"] += [
    ((*_QKV, *chosen.pop("steps")), chosen) for chosen in list(covering(ATTENDED))
]
CALLS["attention"] += [
    ((*_QKV, [0, 4], [7, 7], "f32[4]"), _ATTENTION),
    ((*_QKV, [0, 4], [3, 6], "f32[4] masked"), _ATTENTION | {"window": 2, "soft_cap": 2.0}),
    ((*_QKV, [0, 4], [0, 7], "f32[4] offset"), _ATTENTION | {"causal": False}),
    (
        ("f32[1,2,1,16]", "f32[1,1,65,16]", "f32[1,1,65,16]", [64], [65], "f32[2]"),
        _ATTENTION,
    ),
    (
        ("f32[1,4,33,16]", "f32[1,2,40,16]", "f32[1,2,40,16]", [3], [36], "f32[4]"),
        _ATTENTION | {"window": 9},
    ),
]
"""With a sink for each head: also one that has no weight, and one that has nearly all."""
