"""Imported by a worker process: makes the backend named by PTIR_TEST_IMPOSTOR the only one.

With ``PTIR_TEST_FEW=1`` the corpus there is that of a few ops.
"""

import os

import impostors
from few import derived_of_few_ops

from ptir.backend import Target, registry
from ptir_testsuite.running import items

_backend = getattr(impostors, os.environ["PTIR_TEST_IMPOSTOR"])()
registry.get = lambda name: Target(_backend, _backend.devices()[0])
if os.environ.get("PTIR_TEST_FEW") == "1":
    items._derived = derived_of_few_ops
