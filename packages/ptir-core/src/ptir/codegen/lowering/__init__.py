"""Lowering: kernels rewritten in what a language has.

What comes in: the statements and arguments of a kernel as families build them. What goes out: the
same kernel without the things that a language lacks (``Language.lacks``): 64-bit integers, memory
of bytes, 16-bit floats and so on. One file per pass; ``table`` says which pass removes what, and in
which order they run.
"""
