"""One way of running for each kind of item that is not a single call.

Refusals, composites, random programs, lifetimes and whole models: what is drawn or tabulated in
``corpus`` is here done to a target. ``ptir_testsuite.running.items`` has one row for each kind.
"""
