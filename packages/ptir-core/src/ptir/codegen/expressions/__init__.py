"""Scalar expressions and the indices in them.

What comes in: an instruction and a place. What goes out: an expression of loads, constants,
coordinates and scalar ops, in which what only moves elements has become indexing. ``elementwise``
and ``movement`` are the tables of what each op is; how elements become one is in
``schedules.accumulators``.
"""
