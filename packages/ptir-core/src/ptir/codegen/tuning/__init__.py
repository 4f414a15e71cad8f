"""Tiles measured on a device.

What comes in: the programs that were compiled while somebody measured. What goes out: the tiles
that made their kernels fastest, kept on disk per device.
"""
