"""The suite's command line, ``ptir-conformance``."""

from ptir_testsuite.cli.main import group, main

__all__ = ["group", "main"]
