"""Keys split over groups as CUDA text on the processor: the tests of the coop schedules again."""

from __future__ import annotations

from test_coop_split import *  # noqa: F403  collected again, with this folder's device
