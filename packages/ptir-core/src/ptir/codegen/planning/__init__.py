"""What is decided for a whole block: its groups, their kernels, memory and launches.

What comes in: a straight-line block; what cannot be compiled at all is refused first (``support``).
What goes out: groups, one kernel each, and which values lie in memory between them (``fuse``); of
groups that are alike one is written (``alike``); inputs, outputs and offsets in the arena, and the
copies that are left (``plan``); kernels that follow one another in one launch (``chains``).
"""
