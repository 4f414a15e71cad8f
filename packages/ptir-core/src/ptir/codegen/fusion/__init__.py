"""What may be fused: a block as the generator sees it.

What comes in: a straight-line block. What goes out: who makes and reads each value and what one of
its elements is (``graph``), regions with a single output (``regions``), and which numbers of a
record are values and instructions (``renumber``). Who shares a kernel is decided in
``codegen.planning``.
"""
