"""Fusion: which instructions share a kernel.

What comes in: a straight-line block. What goes out: groups, one kernel each, and which values lie
in memory between them (``fuse``); of groups that are alike one is written (``alike``). What cannot
be compiled at all is refused before that (``support``).
"""
