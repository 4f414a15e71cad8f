"""Dot products of 32-bit words on CPUs, and the trial that a device passes before it has any.

PoCL compiles for a processor that it takes for the nearest it knows, so that OpenCL C has no names
for the newest instructions; its assembler has them. A device has those that the processor lists and
that gave right numbers in a kernel.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from ptir.codegen.api import KernelDevice, built, processor
from ptir.errors import CompileError, DeviceError
from ptir_backend_opencl.platforms import WITHOUT, lacking, runs_here

if TYPE_CHECKING:
    import numpy as np

WHERE: Final = ("__global const uint *", "const uint *")
"""Where a word of activations may lie: in memory, or in an array of the thread."""
WORD: Final = """\
static inline __attribute__((overloadable, always_inline))
{type} {name}_at({type} a, uint16 w, {where}x) {{ {body} return a; }}
"""


def word(name: str, type: str, body: str) -> str:
    """A dot product with one word in memory for all lanes, as a macro that takes the word."""
    each = (WORD.format(name=name, type=type, where=where, body=body) for where in WHERE)
    return "".join(each) + f"#define {name}_v(a, w, x) {name}_at(a, w, &(x))\n"


def instruction(op: str) -> str:
    """An instruction that takes the word from memory.

    Were it loaded before, compilers that do not know the instruction would load it as a float,
    which a sum of integers waits for.
    """
    return f'__asm__("{op} %2%{{1to16%}}, %1, %0" : "+v"(a) : "v"(w), "m"(*x));'


BROADCAST: Final = """
  const uint16 bytes = (uint16)(*x);
  __asm__("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(bytes), "v"(w));
"""
"""The instruction takes signed bytes from memory only."""
INSTRUCTIONS: Final = {
    "dot_bytes": word("dot_bytes", "int16", instruction("vpdpbusd")),
    "dot_signed_bytes": word("dot_signed_bytes", "int16", BROADCAST),
    "dot_bf16": word("dot_bf16", "float16", instruction("vdpbf16ps")),
    "by_power": """\
float16 by_power_v(float16 a, float16 p) {
  __asm__("vgetexpps %0, %0" : "+v"(p));
  __asm__("vscalefps %1, %0, %0" : "+v"(a) : "v"(p));
  return a;
}
""",
    "nearest": """\
int16 nearest_v(float16 a) {
  int16 n;
  __asm__("vcvtps2dq %1, %0" : "=v"(n) : "v"(a));
  return n;
}
""",
    "table_bytes": """\
uint16 table_bytes_v(uint16 w, uint16 a, uint16 b, uint16 c, uint16 d) {
  const uint4 t = (uint4)(a.s0, b.s0, c.s0, d.s0);
  const uint16 table = (uint16)(t, t, t, t);
  __asm__("vpshufb %0, %1, %0" : "+v"(w) : "v"(table));
  return w;
}
""",
}
"""Each dot product, and what stands beside them, as an instruction."""

BYTES: Final = """
  for (int i = 0; i < 32; i += 8)
    a += as_int16((w >> i) & 255u) * (int)(char)(*x >> i);
"""
SIGNED_BYTES: Final = """
  for (int i = 0; i < 32; i += 8)
    a += (as_int16(w << (24 - i)) >> 24) * (int)(*x >> i & 255u);
"""
PAIRS: Final = """
  a += as_float16(w & 0xffff0000u) * as_float(*x & 0xffff0000u);
  a += as_float16(w << 16) * as_float(*x << 16);
"""
SPELLED: Final = {
    "dot_bytes": word("dot_bytes", "int16", BYTES),
    "dot_signed_bytes": word("dot_signed_bytes", "int16", SIGNED_BYTES),
    "dot_bf16": word("dot_bf16", "float16", PAIRS),
    "by_power": "float16 by_power_v(float16 a, float16 p) { return a * p; }\n",
    "nearest": "int16 nearest_v(float16 a) { return convert_int16_sat(rint(a)); }\n",
    "table_bytes": """\
uint16 table_bytes_v(uint16 w, uint16 a, uint16 b, uint16 c, uint16 d) {
  uint16 found = 0;
  for (int i = 0; i < 32; i += 8) {
    const uint16 n = (w >> i) & 15u;
    const uint16 t = select(select(d, c, n < 12u), select(b, a, n < 4u), n < 8u);
    found |= ((t >> ((n & 3u) << 3)) & 255u) << i;
  }
  return found;
}
""",
}
"""The same without any instruction: what they compute, to compare with."""

FOLD: Final = """\
{type} fold_{op}_v({type}16 x) {{
  {type}8 a = {op}(x.lo, x.hi);
  {type}4 b = {op}(a.lo, a.hi);
  {type}2 c = {op}(b.lo, b.hi);
  return {op}(c.x, c.y);
}}
"""
FOLDS: Final = (
    FOLD.format(op="max", type="int")
    + "#define add(a, b) ((a) + (b))\n"
    + FOLD.format(op="add", type="uint")
    + "#undef add\n"
)
"""The lanes of whole numbers combined, half with half."""

WORDS: Final = 16
TRIAL: Final = """\
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void trial(__global uint *b0, __global uint *b1, __global uint *b2) {{
  const uint16 w = vload16(0, b0), x = vload16(0, b1);
  {stores}
}}
"""
STORES: Final = {
    "dot_bytes": "vstore16(as_uint16(dot_bytes_v(as_int16(x), w, b1[5])), 0, b2);",
    "dot_bf16": "vstore16(as_uint16(dot_bf16_v((float16)(0.5f), w, b1[7])), 1, b2);",
    "by_power": "vstore16(as_uint16(by_power_v(convert_float16(x), (float16)(0.125f))), 2, b2);",
    "nearest": "vstore16(as_uint16(nearest_v(convert_float16(x * 40503u & 1023u) / 8)), 3, b2);",
    "table_bytes": "vstore16(table_bytes_v(x & 0x0f0f0f0fu, (uint16)(b0[0]), (uint16)(b0[1]),"
    " (uint16)(b0[2]), (uint16)(b0[3])), 4, b2);",
    "dot_signed_bytes": "vstore16(as_uint16(dot_signed_bytes_v(as_int16(x), w, b1[3])), 5, b2);",
}
"""What a trial computes: 16 words each."""


def functions(dots: frozenset[str], instructions: bool) -> str:
    """The functions of the prelude for a dialect with ``dots``."""
    if not dots:
        return ""
    texts = INSTRUCTIONS if instructions else SPELLED
    beside = FOLDS + texts["by_power"] + texts["nearest"] + texts["table_bytes"]
    return "".join(texts[op] for op in STORES if op in dots) + beside


def listed(device: Any) -> frozenset[str]:
    """The dot products that the processor behind an OpenCL device says it has."""
    if not runs_here(device) or "dots" in lacking():
        return frozenset()
    return processor.dots()


def tried(device: KernelDevice, dots: frozenset[str]) -> frozenset[str]:
    """``dots``, or nothing, with a warning, where a kernel with them fails or is wrong."""
    if not dots:
        return dots
    try:
        found, wanted = (_results(device, dots, instructions) for instructions in (True, False))
        problem = "" if (found == wanted).all() else "its kernel gives other numbers"
    except (CompileError, DeviceError) as error:
        problem = str(error)
    if not problem:
        return dots
    warnings.warn(
        f"opencl: the processor lists {', '.join(sorted(dots))}, and the trial of them failed:"
        f" {problem}; products of narrow weights are slower without (set {WITHOUT}=dots to ask no"
        " more)",
        stacklevel=2,
    )
    return frozenset()


def _results(
    device: KernelDevice, dots: frozenset[str], instructions: bool
) -> np.ndarray[Any, Any]:
    """The words of a trial."""
    import numpy as np

    products = {op for found in processor.DOTS.values() for op in found}
    ops = [op for op in STORES if op in dots or op not in products]
    text = TRIAL.format(stores="\n  ".join(STORES[op] for op in ops))
    source = functions(dots, instructions) + text
    kernel = device.kernel(built(device, source), "trial", 3)
    # pairs of small whole numbers as bf16, whose bytes are any
    values = np.arange(2 * WORDS, dtype=np.float32) * np.float32(3) - 40
    high = values.view(np.uint32) >> 16
    given = (high[::2] | high[1::2] << 16, (high[1::2] | high[::2] << 16)[::-1].copy())
    result = np.zeros(len(STORES) * WORDS, np.uint32)
    memories = [device.allocate(array.nbytes) for array in (*given, result)]
    for position, (memory, array) in enumerate(zip(memories, (*given, result), strict=True)):
        device.write(memory, array)
        device.bind(kernel, position, memory)
    device.launch(kernel, 1)
    device.read(memories[2], result)
    return result
