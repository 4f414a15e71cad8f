"""That a model finds numbers: what is no number would be taken for a result all the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir.errors import CheckpointError
from ptir.params.source import ParamSource


def check_numbers(found: np.ndarray[Any, Any], what: str, source: ParamSource) -> None:
    """Raise ``CheckpointError`` where ``found``, which is ``what``, holds NaN, and say why.

    ``source`` has the weights of which it came.
    """
    if not np.isnan(found).any():
        return
    damaged = next((n for n in source.names() if not _is_finite(source, n)), None)
    why = (
        "every weight is finite, so a value on the way passed the range of its dtype; f32 has"
        " the widest (--dtype, --cache-dtype)"
        if damaged is None
        else f"{damaged!r} of the checkpoint holds NaN or infinity; fetch it again"
    )
    raise CheckpointError(f"{what} are NaN: {why}")


def _is_finite(source: ParamSource, name: str) -> bool:
    """Whether a parameter holds numbers alone; its pages are given back."""
    finite = bool(np.isfinite(source.read(name)).all())
    source.release(name)
    return finite
