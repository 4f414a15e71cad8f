"""What all kernel families write with: the row of a family, fusions and kernels, tiles, workgroups.

What comes in: a fusion and a context (the graph, what is stored, the device's numbers). What goes
out: a kernel in the kernel IR. The families themselves are in ``codegen.families``.
"""
