"""What a compiled program comes down to: a source file, its binary, an artifact; all on disk.

What comes in: kernels and a plan. What goes out: data from which another process binds and runs the
program without fusing, writing or building anything.
"""
