"""Tiles measured on a device.

What comes in: the programs that were compiled while somebody measured. What goes out: the tiles
that made their kernels fastest, which ``schedules.tuned_tiles`` keeps on disk per device.
"""
