"""What is decided for a whole block: its fusions, their kernels, memory and launches.

What comes in: a straight-line block; what cannot be compiled at all is refused first (``support``).
What goes out: fusions, one kernel each, and which values lie in memory between them (``fuse``); of
fusions with equal structural keys one is written (``deduplicate``); inputs, outputs and offsets in
the arena, and the copies that are left (``plan``); kernels that follow one another in one launch
(``persistent``).
"""
