"""What CuPy raises, as the errors of the contract: which number means what."""

from __future__ import annotations

from typing import Final

from ptir.codegen.api import Failures

FAILURES: Final = Failures(
    "cupy",
    number="status",  # CUDA's, the same for runtime and driver
    full=frozenset((2,)),
    lost=frozenset(
        (
            *(46, 79, 100, 101),  # no device, or not for us
            *(201, 709),  # no context
            *(214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721),  # it failed
            *(4, 999),  # the driver is being taken down, or does not know
        )
    ),
    after="CUDA gives a process no second context: start a new one",
    limit="has {0} bytes, {1} are needed in one piece",
)
