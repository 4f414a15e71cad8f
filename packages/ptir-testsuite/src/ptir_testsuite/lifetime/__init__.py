"""Lifetime and threads: seeded walks over handles and tensors, held against NumPy's arrays."""

from ptir_testsuite.lifetime.check import KINDS, Lifetime, lifetimes, run_lifetime, told

__all__ = ["KINDS", "Lifetime", "lifetimes", "run_lifetime", "told"]
