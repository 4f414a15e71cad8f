"""What all kernel families write with: the row of a family, groups and kernels, tiles, work-groups.

What comes in: a group and a site (the graph, what is stored, the device's numbers). What goes out:
a kernel in the kernel IR. The families themselves are in ``codegen.families``.
"""
