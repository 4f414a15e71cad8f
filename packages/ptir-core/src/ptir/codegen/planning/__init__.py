"""The memory plan: where every stored value lies while a program runs.

What comes in: kernels and what they read and write. What goes out: inputs, outputs and offsets in
the arena, and the copies that are left.
"""
