"""Weights stored in blocks, as the kernels of products take them: words, scales and minima.

No number changes on the way (``ptir.weights.affine_form``). What is in memory is larger than what
is stored wherever a format has fewer bits than words have, which is a few percent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ptir.errors import CheckpointError
from ptir.params.parted import WORDS, PartedSource, in_runs
from ptir.params.quantized import resized
from ptir.params.source import Array, BlockSource, block_rows_of
from ptir.types import I32, U32, TensorType
from ptir.weights.affine_arrays import affine_arrays, floats_of
from ptir.weights.affine_form import ORDER, SCALE, AffineForm


class PackedSource(PartedSource):
    """Another source's parameters, and the parts of weights that it stores in blocks.

    ``forms`` maps these to their form and the axis of their inputs. Raises ``CheckpointError``,
    which begins with ``where`` the weights lie, when scales are read that are no numbers, or too
    large for what is computed with them.
    """

    def __init__(
        self, source: BlockSource, forms: Mapping[str, tuple[AffineForm, int]], where: str
    ) -> None:
        self._stored, self._forms, self._where = source, dict(forms), where
        super().__init__(
            source,
            {
                name: dict(_parts(name, form, axis, source.type(name).shape))
                for name, (form, axis) in forms.items()
            },
        )

    def has_rows(self, base: str) -> bool:
        """Whether inputs are the second axis."""
        return self._forms[base][1] == 1

    def parts_of(self, base: str, rows: slice | None = None) -> dict[str, Array]:
        """Words, scales and minima of a weight."""
        import numpy as np

        form, axis = self._forms[base]
        outputs, inputs = self._stored.type(base).shape[:: 1 if axis == 1 else -1]
        if rows is None:
            stored = self._stored.blocks(base)
        else:
            first, end, _ = rows.indices(outputs)
            stored, outputs = block_rows_of(self._stored, base, first, end), max(0, end - first)

        def run(some: slice) -> dict[str, Array]:
            return affine_arrays(form, {name: array[some] for name, array in stored.items()})

        found = in_runs(outputs, inputs, run)
        self._stored.release(base)
        _check_scales(f"{self._where}: {base!r}", form, found)
        if axis == 0:
            found = {name: np.ascontiguousarray(array.T) for name, array in found.items()}
        if form.format.order is not None:
            found[ORDER] = np.frombuffer(form.format.order.numbers, np.int32)
        return found


def part_name(name: str, form: AffineForm, part: str) -> str:
    """What a part of the weight called ``name`` is called."""
    return f"{name}:{form.format.name}.{part}"


def parts_of(form: AffineForm) -> tuple[str, ...]:
    """The names of the parts of a weight."""
    order = () if form.format.order is None else (ORDER,)
    return (WORDS, *form.parts, *order)


def _parts(
    name: str, form: AffineForm, axis: int, shape: tuple[int, ...]
) -> Iterator[tuple[str, tuple[str, TensorType]]]:
    words = resized(shape, axis, form.words_for(shape[axis]))
    yield WORDS, (part_name(name, form, WORDS), TensorType(U32, words))
    for part, (dtype, each) in form.parts.items():
        shared = resized(shape, axis, shape[axis] // each)
        yield part, (part_name(name, form, part), TensorType(dtype, shared))
    if form.format.order is not None:
        yield ORDER, (part_name(name, form, ORDER), TensorType(I32, (shape[axis],)))


def _check_scales(what: str, form: AffineForm, arrays: Mapping[str, Array]) -> None:
    """Scales must be finite, and so must be what is computed with them."""
    import numpy as np

    for name in form.parts:
        if not np.isfinite(arrays[name].astype(np.float32)).all():
            raise CheckpointError(
                f"{what}: a {name.replace('_', ' ')} of its {form.format.name} blocks is NaN or"
                " infinite; the file is damaged: fetch it again"
            )
    if form.scale.super_block:
        return
    largest = float(np.abs(floats_of(form.scale, arrays[SCALE])).max(initial=0.0))
    if largest > form.largest_scale:
        raise CheckpointError(
            f"{what}: a scale of its {form.format.name} blocks is {largest:g}; at most"
            f" {form.largest_scale:g} can be computed with: fetch another quantization of the model"
        )
