"""WGSL, the language of WebGPU: a dialect, and a renderer of lowered kernels.

WGSL is no relative of C: no implicit conversions, no pointers, no masks, words of 32 bits only.
``ptir.codegen.lowering`` removes what it lacks; ``render`` spells what is left.
"""
