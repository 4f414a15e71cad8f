"""The steps of a model as they are captured, with what its parameters stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptir.capture.build import Captured
from ptir.capture.jit import record
from ptir.nn.state import by_layer, tensor_names
from ptir.types import spec

if TYPE_CHECKING:
    from ptir.runtime.handle import Model
    from ptir.runtime.image_model import ImageModel, ImageTextModel
    from ptir.runtime.text_model import TextModel

USUAL: Final = (224, 224)
"""Height and width of images where a model takes any."""


def recorded_step(model: Model, batch: int, length: int, capacity: int) -> Captured:
    """The step of ``batch`` rows of ``length`` tokens on a state of ``capacity`` positions.

    Ports: ``tokens`` i32[B,T], ``start`` and ``count`` i32[B], the state's tensors by name, then
    parameters. Outputs: the last logits f32[B,V] and the next state.
    """
    states = model.states()
    carried = model.state_types(batch, capacity)

    def step(tokens: Any, start: Any, count: Any, *flat: Any) -> Any:
        return model.module(tokens, by_layer(states, flat), start, count)

    row = spec("i32", batch)
    types = (spec("i32", batch, length), row, row, *(t for types in carried for t in types))
    names = ["tokens", "start", "count", *tensor_names(states)]
    return record(step, types, names)[0]


def image_size(model: ImageModel) -> tuple[int, int]:
    """Height and width of images as the checkpoint has them prepared, or as the model was made for.

    Where neither says, the usual ones.
    """
    if model.says_preprocessing and model.preprocessing.size is not None:
        return model.preprocessing.size
    said = model.checkpoint.config.get("image_size")
    return (said, said) if isinstance(said, int) else model.preprocessing.size or USUAL


def random_images(model: ImageModel, count: int, size: tuple[int, int] | None = None) -> Any:
    """Prepared images f32[N,H,W,3] of seeded noise, of a size or that which the model's have."""
    import numpy as np

    shape = count, *(size or image_size(model)), 3
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def recorded_images(model: ImageModel, batch: int, size: tuple[int, int] | None = None) -> Captured:
    """A run over ``batch`` images: ``pixels`` f32[N,H,W,3] to features and scores.

    ``size`` is their height and width; by default what the model was made for.
    """
    height, width = size or image_size(model)
    return record(model.module, (spec("f32", batch, height, width, 3),), ["pixels"])[0]


def recorded_labels(model: ImageTextModel, batch: int) -> Captured:
    """A run over ``batch`` texts of a model of images: ``tokens`` i32[N,T], ``count`` i32[N]."""
    types = spec("i32", batch, model.context), spec("i32", batch)
    return record(model.module.texts, types, ["tokens", "count"])[0]


def recorded_texts(model: TextModel, batch: int, length: int) -> Captured:
    """A run over ``batch`` texts of ``length`` tokens, to scores of the head or embeddings.

    Ports: ``tokens`` and ``kinds`` i32[B,T], ``count`` i32[B].
    """
    rows = spec("i32", batch, length)
    return record(model.network, (rows, rows, spec("i32", batch)), ["tokens", "kinds", "count"])[0]
