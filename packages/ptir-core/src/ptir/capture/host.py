"""From Python and NumPy values to arrays of PTIR element types, never losing a value silently.

Arrays keep their element type, Python floats become f32 and integers i32; a Python integer that
does not fit is an error, where a NumPy array asked into another type follows the op ``cast``.
"""

from __future__ import annotations

from typing import Any

from ptir.capture.promote import scalar_array
from ptir.errors import TypeRuleError
from ptir.types import BOOL, F32, I32, DType


def host_array(value: Any, wanted: DType | None = None) -> Any:
    """``value`` as a NumPy array in native byte order, of the element type ``wanted`` if given.

    Takes arrays, DLPack objects, numbers and nested lists of them. Raises ``TypeRuleError``.
    """
    import numpy as np

    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError) as error:
            raise TypeRuleError(
                f"tensor({type(value).__name__}): NumPy cannot read it where it lies ({error});"
                " copy it to the host, or use a backend on its device"
            ) from None
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return native if wanted is None else _cast(native, wanted)
    return _from_python(value, wanted)


def _from_python(value: Any, wanted: DType | None) -> Any:
    import numpy as np

    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeRuleError(f"tensor({type(value).__name__}): {error}") from None
    default = {"f": F32, "i": I32, "u": I32, "b": BOOL}.get(array.dtype.kind)
    if default is None:
        rule = "not a rectangular array of numbers that an element type holds"
        raise TypeRuleError(f"tensor({type(value).__name__}): {rule}")
    chosen = wanted or (default if array.size or wanted else F32)
    if array.dtype.kind in "iu" and chosen.is_integer:
        for extreme in (array.max(initial=0), array.min(initial=0)):
            scalar_array(int(extreme), chosen)
    return _cast(array, chosen)


def _cast(array: Any, wanted: DType) -> Any:
    from ptir.ops.numerics import cast
    from ptir.types import dtype_of

    return array if dtype_of(array) == wanted else cast(array, dtype=wanted)
