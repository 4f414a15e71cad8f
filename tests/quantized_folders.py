"""Quantized llama folders with random codes, and their numbers by each format's own definition.

Everything here is written as plain loops over numbers, and shares nothing with ``ptir``'s readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ptir.checkpoint import open_checkpoint, save_folder, write_safetensors
from ptir.params.source import ArraySource, ParamSource
from ptir.types import TensorType, dtype_of
from running import llama_folder

Arrays = dict[str, Any]
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 1}
"""Neither of the sizes of a weight that goes down is a block of 128."""
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4_BNB = (
    *(0.0, 0.0052083333, 0.6666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25),
    *(-0.0, -0.0052083333, -0.6666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25),
)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Case:
    """A way to store weights: the configuration, and tensors and numbers of random codes."""

    config: dict[str, Any]
    encode: Callable[[np.random.Generator, int, int], tuple[Arrays, Any]]
    words: bool | None = True
    key: str = "quantization_config"


def stream(values: list[int], bits: int) -> list[int]:
    """Values as words, low bits first, without gaps."""
    whole = 0
    for place, value in enumerate(values):
        whole |= int(value) << (place * bits)
    return [whole >> 32 * n & 0xFFFFFFFF for n in range(-(-len(values) * bits // 32))]


def words(lines: Any, bits: int, dtype: Any = np.int32) -> Any:
    return np.array([stream(line, bits) for line in lines.tolist()], np.uint32).view(dtype)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Positive scales that differ, such as a bf16 or f16 has them."""
    return (rng.uniform(0.01, 0.06, shape)).astype(np.float32).astype(dtype)


def minus_zero(codes: Any, zeros: Any, scales: Any, group_of: Any) -> Any:
    """(code - zero) * scale, with [outputs, groups] of zeros and scales."""
    found = np.zeros(codes.shape, np.float32)
    for output in range(codes.shape[0]):
        for place in range(codes.shape[1]):
            group = group_of[place]
            whole = int(codes[output, place]) - int(zeros[output, group])
            found[output, place] = np.float32(whole) * np.float32(scales[output, group])
    return found


def awq(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
    groups = inputs // 32
    codes = rng.integers(0, 16, (outputs, inputs))
    zeros = rng.integers(0, 16, (outputs, groups))
    scales = random(rng, (outputs, groups), np.float16)

    def interleaved(lines: Any) -> Any:  # [lines, outputs]: eight outputs 0 2 4 6 1 3 5 7 a word
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        packed = np.zeros((lines.shape[0], outputs // 8), np.uint32)
        for line in range(lines.shape[0]):
            for word in range(outputs // 8):
                for place, column in enumerate(order):
                    packed[line, word] |= int(lines[line, 8 * word + column]) << 4 * place
        return packed.view(np.int32)

    tensors = {
        "qweight": interleaved(codes.T),
        "qzeros": interleaved(zeros.T),
        "scales": np.ascontiguousarray(scales.T),
    }
    return tensors, minus_zero(codes, zeros, scales, np.arange(inputs) // 32)


def gptq(
    bits: int, *, group: int = 32, shift: int = 1, shuffle: bool = False, dtype: Any = np.float16
) -> Any:
    def encode(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
        size = inputs if group == -1 else group
        groups = inputs // size
        codes = rng.integers(0, 1 << bits, (outputs, inputs))
        zeros = rng.integers(shift, 1 << bits, (outputs, groups))
        scales = random(rng, (outputs, groups), dtype)
        group_of = np.arange(inputs) // size
        if shuffle:
            group_of = rng.permutation(group_of)
        tensors = {
            "qweight": np.ascontiguousarray(words(codes, bits).T),
            "qzeros": words((zeros - shift).T, bits),
            "scales": np.ascontiguousarray(scales.T),
            "g_idx": group_of.astype(np.int32),
        }
        return tensors, minus_zero(codes, zeros, scales, group_of)

    return encode


def mlx(bits: int, dtype: Any = ml_dtypes.bfloat16) -> Any:
    def encode(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
        codes = rng.integers(0, 1 << bits, (outputs, inputs))
        scales = random(rng, (outputs, inputs // 32), dtype)
        biases = (-random(rng, (outputs, inputs // 32), dtype).astype(np.float32)).astype(dtype)
        found = np.zeros(codes.shape, np.float32)
        for output in range(outputs):
            for place in range(inputs):
                scale, bias = (np.float32(one[output, place // 32]) for one in (scales, biases))
                found[output, place] = np.float32(codes[output, place]) * scale + bias
        tensors = {"weight": words(codes, bits, np.uint32), "scales": scales, "biases": biases}
        return tensors, found

    return encode


def fp4(code: int) -> float:
    return -E2M1[code - 8] if code > 7 else E2M1[code]


def mlx_mxfp4(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
    codes = rng.integers(0, 16, (outputs, inputs))
    powers = rng.integers(117, 124, (outputs, inputs // 32)).astype(np.uint8)
    found = np.zeros(codes.shape, np.float32)
    for output in range(outputs):
        for place in range(inputs):
            power = int(powers[output, place // 32]) - 127
            found[output, place] = fp4(int(codes[output, place])) * 2.0**power
    return {"weight": words(codes, 4, np.uint32), "scales": powers}, found


def pack_quantized(
    bits: int, *, group: int = 32, zeros: bool = False, dtype: Any = ml_dtypes.bfloat16
) -> Any:
    def encode(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
        size = inputs if group == -1 else group
        codes = rng.integers(0, 1 << bits, (outputs, inputs))
        middle = np.full((outputs, inputs // size), 1 << (bits - 1))
        zero = rng.integers(0, 1 << bits, middle.shape) if zeros else middle
        scales = random(rng, middle.shape, dtype)
        tensors = {
            "weight_packed": words(codes, bits),
            "weight_scale": scales,
            "weight_shape": np.array([outputs, inputs], np.int64),
        }
        if zeros:
            tensors["weight_zero_point"] = np.ascontiguousarray(words(zero.T, bits).T)
        return tensors, minus_zero(codes, zero, scales, np.arange(inputs) // size)

    return encode


def int_quantized(
    *, tensor: bool = False, zeros: bool = False, dtype: Any = ml_dtypes.bfloat16
) -> Any:
    def encode(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
        codes = rng.integers(-128, 128, (outputs, inputs)).astype(np.int8)
        scales = (random(rng, (1,) if tensor else (outputs, 1), np.float32) / 16).astype(dtype)
        zero = rng.integers(-9, 9, scales.shape).astype(np.int8) * np.int8(zeros)
        spread = [np.broadcast_to(one.reshape(-1, 1), (outputs, 1)) for one in (zero, scales)]
        tensors = {"weight": codes, "weight_scale": scales}
        if zeros:
            tensors["weight_zero_point"] = zero
        return tensors, minus_zero(codes, *spread, np.zeros(inputs, int))

    return encode


def small_float(code: int, fraction: int, bias: int) -> float:
    """The number of 8 bits with ``fraction`` of them behind the exponent."""
    exponent, rest = (code & 127) >> fraction, code & (1 << fraction) - 1
    whole = rest / (1 << fraction) + (exponent > 0)
    return (-1 if code & 128 else 1) * whole * 2.0 ** (max(exponent, 1) - bias)


def fp8(
    scale: str, block: tuple[int, int] | None, dtype: Any = np.float32, e5: bool = False
) -> Any:
    """Scales by block, or for a tensor (0, 0), or for each output."""

    def encode(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
        codes = rng.integers(0, 256, (outputs, inputs)).astype(np.uint8)
        codes[codes & 127 > 112] = 5  # neither NaN nor the greatest
        rows, columns = {None: (1, inputs), (0, 0): (outputs, inputs)}.get(block, block)
        shape = (-(-outputs // rows), -(-inputs // columns))
        scales = (random(rng, shape, np.float32) / 64).astype(dtype)
        found = np.zeros(codes.shape, np.float32)
        for output in range(outputs):
            for place in range(inputs):
                value = small_float(int(codes[output, place]), *((2, 15) if e5 else (3, 7)))
                by = np.float32(scales[output // rows, place // columns])
                found[output, place] = np.float32(value) * by
        kind = ml_dtypes.float8_e5m2 if e5 else ml_dtypes.float8_e4m3fn
        held = scales.reshape(()) if block == (0, 0) else scales
        return {"weight": codes.view(kind), scale: held}, found

    return encode


def nvfp4(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
    codes = rng.integers(0, 16, (outputs, inputs))
    scales = rng.integers(8, 100, (outputs, inputs // 16)).astype(np.uint8)
    whole = np.float32(37.3)
    found = np.zeros(codes.shape, np.float32)
    for output in range(outputs):
        for place in range(inputs):
            by = np.float32(small_float(int(scales[output, place // 16]), 3, 7)) / whole
            found[output, place] = np.float32(fp4(int(codes[output, place]))) * by
    pairs = codes[:, ::2] | codes[:, 1::2] << 4
    tensors = {
        "weight_packed": pairs.astype(np.uint8),
        "weight_scale": scales.view(ml_dtypes.float8_e4m3fn),
        "weight_global_scale": np.array([whole], np.float32),
    }
    return tensors, found


def four(kind: str, *, block: int = 64, nested: bool = False) -> Any:
    def encode(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
        table = np.array(NF4 if kind == "nf4" else FP4_BNB, np.float32)
        size = outputs * inputs
        codes, blocks = rng.integers(0, 16, size), -(-size // block)
        absmax = random(rng, (blocks,), np.float32) * 5
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16"}
        state |= {"shape": [outputs, inputs]}
        tensors = {
            "weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None],
            "weight.absmax": absmax,
            "weight.quant_map": table,
        }
        if nested:
            book, offset = rng.normal(size=256).astype(np.float32), 0.25
            small = rng.integers(0, 256, blocks).astype(np.uint8)
            scale = random(rng, (-(-blocks // 256),), np.float32)
            for one in range(blocks):
                product = book[small[one]] * scale[one // 256]
                absmax[one] = np.float32(product) + np.float32(offset)
            tensors |= {"weight.absmax": small, "weight.nested_absmax": scale}
            tensors["weight.nested_quant_map"] = book
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        said = np.frombuffer(json.dumps(state).encode(), np.uint8)
        tensors[f"weight.quant_state.bitsandbytes__{kind}"] = said
        found = np.zeros(size, np.float32)
        for place in range(size):
            found[place] = table[codes[place]] * np.float32(absmax[place // block])
        return tensors, found.reshape(outputs, inputs)

    return encode


def int8(rng: np.random.Generator, outputs: int, inputs: int) -> tuple[Arrays, Any]:
    codes = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    greatest = random(rng, (outputs,), np.float32) * 10
    found = np.zeros(codes.shape, np.float32)
    for output in range(outputs):
        by = greatest[output] * np.float32(1.0 / 127.0)
        for place in range(inputs):
            found[output, place] = np.float32(codes[output, place]) * by
    return {"weight": codes, "SCB": greatest, "weight_format": np.uint8(0).reshape(())}, found


def ct(format: str, bits: int, strategy: str, **weights: Any) -> dict[str, Any]:
    """A configuration of compressed-tensors."""
    kind = "float" if "fp4" in format or "float" in format else "int"
    said = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **weights}
    group = {"targets": ["Linear"], "weights": said, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "group_size": 32, "desc_act": False, "checkpoint_format": "gptq"}
V2 = {"checkpoint_format": "gptq_v2"}
BNB = {"quant_method": "bitsandbytes"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
GROUP = {"group_size": 32}

CASES: dict[str, Case] = {
    "awq": Case(AWQ, awq),
    **{f"gptq-{bits}": Case({**GPTQ, "bits": bits}, gptq(bits)) for bits in (2, 3, 4, 8)},
    "gptq-v2": Case({**GPTQ, **V2, "bits": 4}, gptq(4, shift=0)),
    "gptq-all": Case({**GPTQ, "bits": 4, "group_size": -1}, gptq(4, group=-1)),
    "gptq-order": Case({**GPTQ, "bits": 4, "desc_act": True}, gptq(4, shuffle=True)),
    "gptq-order-3": Case({**GPTQ, "bits": 3}, gptq(3, shuffle=True)),
    "gptq-f32": Case({**GPTQ, "bits": 4}, gptq(4, dtype=np.float32), words=False),
    **{
        f"mlx-{bits}": Case({**GROUP, "bits": bits}, mlx(bits), key="quantization")
        for bits in (2, 3, 4, 5, 6, 8)
    },
    "mlx-f16": Case({**GROUP, "bits": 4}, mlx(4, np.float16), key="quantization"),
    "mlx-mxfp4": Case({**GROUP, "bits": 4, "mode": "mxfp4"}, mlx_mxfp4, key="quantization"),
    "ct-int4": Case(ct("pack-quantized", 4, "group", **GROUP), pack_quantized(4)),
    "ct-int3-zeros": Case(
        ct("pack-quantized", 3, "group", **GROUP, symmetric=False), pack_quantized(3, zeros=True)
    ),
    "ct-int4-zeros": Case(
        ct("pack-quantized", 4, "group", **GROUP, symmetric=False), pack_quantized(4, zeros=True)
    ),
    "ct-int4-f32": Case(
        ct("pack-quantized", 4, "group", **GROUP, symmetric=False),
        pack_quantized(4, zeros=True, dtype=np.float32),
        words=False,
    ),
    "ct-int4-f32-middle": Case(
        ct("pack-quantized", 4, "group", **GROUP), pack_quantized(4, dtype=np.float32)
    ),
    "ct-int8-packed": Case(ct("pack-quantized", 8, "channel"), pack_quantized(8, group=-1)),
    "ct-int8": Case(ct("int-quantized", 8, "channel"), int_quantized()),
    "ct-int8-tensor": Case(ct("int-quantized", 8, "tensor"), int_quantized(tensor=True)),
    "ct-int8-zeros": Case(
        ct("int-quantized", 8, "channel", symmetric=False), int_quantized(zeros=True)
    ),
    "ct-int8-f32": Case(
        ct("int-quantized", 8, "channel", symmetric=False),
        int_quantized(zeros=True, dtype=np.float32),
        words=False,
    ),
    "ct-fp8": Case(
        ct("float-quantized", 8, "channel"), fp8("weight_scale", None, ml_dtypes.bfloat16)
    ),
    "ct-fp8-tensor": Case(ct("float-quantized", 8, "tensor"), fp8("weight_scale", (0, 0))),
    "ct-fp8-blocks": Case(
        ct("float-quantized", 8, "block", block_structure=[128, 128]),
        fp8("weight_scale", (128, 128)),
    ),
    "ct-nvfp4": Case(ct("nvfp4-pack-quantized", 4, "tensor_group", group_size=16), nvfp4),
    "bnb-nf4": Case(BNB, four("nf4", block=32)),
    "bnb-nf4-nested": Case(BNB, four("nf4", block=32, nested=True)),
    "bnb-nf4-across": Case(BNB, four("nf4", nested=True), words=None),
    "bnb-nf4-long": Case(BNB, four("nf4", block=4096), words=False),
    "bnb-fp4": Case(BNB, four("fp4", block=32)),
    "bnb-int8": Case(BNB, int8),
    "fp8-blocks": Case(
        {**FP8, "weight_block_size": [128, 128]}, fp8("weight_scale_inv", (128, 128))
    ),
    "fp8-tensor": Case(FP8, fp8("weight_scale", (0, 0))),
    "fp8-output": Case({"quant_method": "fbgemm_fp8"}, fp8("weight_scale", None, e5=True)),
}
"""By a name of ours: what is said, and how it is stored.

``words``: products read it as words; None: some do, and some are blocks that go on in the next row.
"""


@dataclass(frozen=True)
class Folder:
    """A quantized folder, what was written into it, and the numbers of its weights."""

    path: Path
    config: dict[str, Any]
    tensors: Arrays
    weights: Arrays

    def rewrite(self) -> Folder:
        """Write the configuration and the tensors anew, as they are now."""
        types = {n: TensorType(dtype_of(a), a.shape) for n, a in self.tensors.items()}
        write_safetensors(self.path / "model.safetensors", self.tensors.items(), types)
        (self.path / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        return self


def write(folder: Path, case: Case, **config: Any) -> Folder:
    """A llama whose projections are stored as ``case`` says; the head and embedding are floats."""
    path = llama_folder(folder, **SIZES, **config)
    opened = open_checkpoint(path)
    key = id(case), json.dumps(config)
    if key not in _made:
        _made[key] = _encoded(opened.source, case)
    tensors, weights = map(dict, _made[key])
    held = {**opened.config, case.key: case.config}
    return Folder(path, held, {n: np.array(a) for n, a in tensors.items()}, weights).rewrite()


_made: dict[tuple[int, str], tuple[Arrays, Arrays]] = {}
"""By case and configuration: loops over numbers take a while."""


def _encoded(source: ParamSource, case: Case) -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(7)
    tensors: Arrays = {}
    weights: Arrays = {}
    for name in source.names():
        module, array = name.rpartition(".")[0], source.read(name)
        if not module.endswith("_proj") or not name.endswith(".weight"):
            tensors[name] = weights[name] = np.array(array)
            continue
        parts, weights[name] = case.encode(rng, *array.shape)
        tensors |= {f"{module}.{part}": value for part, value in parts.items()}
    return tensors, weights


def plain(folder: Folder, path: Path) -> Path:
    """The same model, its weights as floats."""
    opened = open_checkpoint(folder.path)
    return save_folder(replace(opened, source=ArraySource(folder.weights)), path)
