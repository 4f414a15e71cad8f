"""Imported by a worker process: makes the backend named by PTIR_TEST_IMPOSTOR the only one."""

import os

import impostors

from ptir.backend import Target, registry

_backend = getattr(impostors, os.environ["PTIR_TEST_IMPOSTOR"])()
registry.get = lambda name: Target(_backend, _backend.devices()[0])
