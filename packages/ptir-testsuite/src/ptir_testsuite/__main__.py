"""``python -m ptir_testsuite`` is ``ptir-conformance``."""

import sys

from ptir_testsuite.cli import main

if __name__ == "__main__":
    sys.exit(main())
