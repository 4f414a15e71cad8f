"""``ImageModel``: the handle of a model that classifies or embeds images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import numpy as np

from ptir.capture.jit import jit
from ptir.capture.tensor import Tensor, from_host
from ptir.errors import CheckpointError, UnsupportedError, UsageError, short
from ptir.models import definition
from ptir.models.clip import mark_tokens, text_config
from ptir.models.table import MATCHES, SEES
from ptir.nn.module import recording
from ptir.runtime.handle import Array, Model
from ptir.vision import (
    Label,
    Preprocessing,
    check_top_k,
    class_names,
    likeliest,
    open_image,
    preprocessing_of,
    read_labels,
)

if TYPE_CHECKING:
    from ptir.capture.plan import Plan
    from ptir.vision.image_file import Given

BATCH: Final = 8
"""Images that are prepared and run together; fewer are filled up to a power of two."""
TEXTS: Final = 16
"""Texts likewise."""

Network: TypeAlias = Callable[[Tensor], Tensor]
"""From prepared images f32[N,H,W,3] to a row for each."""


class ImageModel(Model):
    """A loaded model that takes images; what it cannot do raises ``UnsupportedError``.

    An image is a path, the bytes of a file, an array u8[H,W,3] or an image of Pillow.
    """

    def __post_init__(self) -> None:
        """Capture the network when it first runs, for what is asked and each shape of a batch."""

        def features(pixels: Tensor) -> Tensor:
            found: Tensor = self.module(pixels)[0]
            return found

        def scores(pixels: Tensor) -> Tensor:
            found: Tensor = self.module(pixels)[1]
            return found

        self._features, self._scores = jit(features), jit(scores)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What this model can do; one without a classifier embeds alone."""
        return SEES if self.module.classes else tuple(one for one in SEES if one != "classify")

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What its classes are called."""
        return class_names(self.checkpoint.config, self.module.classes)

    def name_classes(self, path: Path) -> None:
        """Take the classes' names from a text file, one a line; raises ``UsageError``."""
        self.labels = read_labels(path, self.module.classes)

    @property
    def says_preprocessing(self) -> bool:
        """Whether the checkpoint says how images are prepared; else its family's way is taken."""
        config = self.checkpoint.config
        return bool(self.checkpoint.preprocessor_config) or "pretrained_cfg" in config

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """How images are prepared; raises ``CheckpointError``."""
        config, given = self.checkpoint.config, self.checkpoint.preprocessor_config
        if not self.says_preprocessing:
            given = definition(str(config["model_type"])).preprocessing
        try:
            return preprocessing_of(config, given)
        except CheckpointError as error:
            raise CheckpointError(f"{self.checkpoint.path}: {error}") from error

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What was compiled so far for features, and behind that for scores."""
        return (*self._features.plans, *self._scores.plans)

    def pixels(self, images: Given | Sequence[Given]) -> Array:
        """Images as the model takes them, f32[N,H,W,3]; raises ``ImageError``.

        ``UsageError`` where the preparation gives images of several sizes.
        """
        prepared = [self.preprocessing(open_image(image)) for image in _listed(images)]
        sizes = {one.shape for one in prepared}
        if len(sizes) > 1:
            shown = ", ".join(f"{height} x {width}" for height, width, _ in sorted(sizes))
            raise UsageError(
                f"prepared images are of several sizes ({shown}), since the model's preparation"
                " neither crops nor resizes to one; give them one by one"
            )
        return np.stack(prepared)

    def classify(
        self, images: Given | Sequence[Given], *, top_k: int = 5, labels: Sequence[str] = ()
    ) -> list[tuple[Label, ...]]:
        """The ``top_k`` likeliest classes of each image, the likeliest first.

        ``BATCH`` images are prepared and run together. ``labels`` are for models without classes of
        their own. Raises ``ImageError`` and ``UsageError``.
        """
        self.require("classify")
        check_top_k(top_k)
        if labels:
            raise UsageError(
                f"model {self.name!r} has {self.module.classes} classes of its own, and labels are"
                " for a model that takes any; leave them out"
            )
        rows = self._in_batches(images, self._scores)
        return [likeliest(scores, self.labels, int(top_k)) for scores in rows]

    def embed(self, inputs: Given | Sequence[Given]) -> Array:
        """Features of each image f32[N,D], as the model pools them before its classifier."""
        return np.stack([*self._in_batches(inputs, self._features)])

    def features(self, pixels: Any) -> Array:
        """Features f32[N,D] of prepared images f32[N,H,W,3], as ``embed`` gives them of others."""
        return self._run(self._features, self._checked(pixels))

    def forward(self, tokens: Any) -> Array:
        """Scores f32[N,classes] (or f32[classes]) of prepared images f32[N,H,W,3] (or f32[H,W,3]).

        Of a model without a classifier: features.
        """
        pixels = self._checked(tokens)
        batch = pixels if pixels.ndim == 4 else pixels[None]
        found = self._run(self._scores if self.module.classes else self._features, batch)
        return found if pixels.ndim == 4 else found[0]

    def trace(self, tokens: Any) -> dict[str, Array]:
        """The output of every layer by name, of prepared images f32[N,H,W,3].

        What the model gives is there as ``features`` and ``scores``.
        """
        pixels = self._checked(tokens)

        def traced(pixels: Tensor) -> dict[str, Tensor]:
            with recording() as outputs:
                features, scores = self.module(pixels)
            given = {"features": features, "scores": scores}
            return outputs | {name: one for name, one in given.items() if one is not None}

        batch = self._tensor(pixels if pixels.ndim == 4 else pixels[None])
        with self.policies():
            return {name: found.numpy() for name, found in jit(traced)(batch).items()}

    def encode(self, prompt: Any) -> NoReturn:
        """Token ids, for models of language."""
        raise UnsupportedError(
            f"model {self.name!r} takes images, not texts or token ids; give images"
            " (`ptir embed`, `ptir classify`, or `Model.forward` with pixels)"
        )

    def _checked(self, given: Any) -> Array:
        pixels = np.asarray(given)
        if pixels.ndim not in (3, 4) or pixels.shape[-1] != 3 or pixels.dtype != np.float32:
            shape = ",".join(map(str, pixels.shape))
            raise UsageError(
                f"forward: prepared images are {pixels.dtype}[{shape}]; give f32[N,H,W,3] or"
                " f32[H,W,3], as pixels() makes them"
            )
        if not pixels.size:
            raise UsageError("forward: there is no pixel")
        return pixels

    def _run(self, network: Network, pixels: Array) -> Array:
        """What a network finds in prepared images, which must not change meanwhile."""
        with self.policies():
            found: Array = network(from_host(pixels, self.target, borrow=True)).numpy()
            return found

    def _in_batches(self, images: Any, network: Network) -> Iterator[Array]:
        """What a network finds in each image, in order."""
        listed = _listed(images)
        for first in range(0, len(listed), BATCH):
            pixels = self.pixels(listed[first : first + BATCH])
            count = len(pixels)
            filled = np.zeros((1 << (count - 1).bit_length(), *pixels.shape[1:]), np.float32)
            filled[:count] = pixels
            yield from self._run(network, filled)[:count]


class ImageTextModel(ImageModel):
    """One that takes texts too, and says how well each fits an image: it has no classes of its own.

    ``forward`` gives images' features, as ``embed`` does.
    """

    def __post_init__(self) -> None:
        """Capture what reads texts beside what sees."""
        super().__post_init__()
        self._read = jit(self.module.texts)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What this model can do."""
        return MATCHES

    def classify(
        self, images: Given | Sequence[Given], *, top_k: int = 5, labels: Sequence[str] = ()
    ) -> list[tuple[Label, ...]]:
        """The ``top_k`` of ``labels`` that fit each image best, the best first.

        A label is a text such as ``a photo of a cat``. Probabilities are over the labels given.
        """
        if isinstance(labels, str) or not labels:
            raise UsageError(
                f"model {self.name!r} has no classes of its own; give labels, a list of texts"
                " (--label)"
            )
        check_top_k(top_k)
        texts, factor = self._texts(labels)
        images_ = _unit(self.embed(images))
        scores = factor * images_ @ _unit(texts).T
        return [likeliest(row, labels, int(top_k)) for row in scores]

    def embed_texts(self, texts: Sequence[str]) -> Array:
        """Features f32[N,D] of texts, in the space of those of images; raises ``UsageError``."""
        return self._texts(texts)[0]

    def _texts(self, texts: Sequence[str]) -> tuple[Array, float]:
        if isinstance(texts, str) or not texts:
            raise UsageError("texts must be a list of texts, at least one")
        return self.read([self._marked(text) for text in texts])

    def read(self, rows: Sequence[Sequence[int]]) -> tuple[Array, float]:
        """Features f32[N,D] of texts as token ids, each of which ends at its end mark.

        The second is the factor of scores: a score is it times the cosine of an image's features
        and a text's.
        """
        found, factor = [], 1.0
        for first in range(0, len(rows), TEXTS):
            some = rows[first : first + TEXTS]
            tokens = np.zeros((1 << (len(some) - 1).bit_length(), self.context), np.int32)
            count = np.ones(len(tokens), np.int32)
            for number, row in enumerate(some):
                tokens[number, : len(row)], count[number] = row, len(row)
            with self.policies():
                features, scale = self._read(self._tensor(tokens), self._tensor(count))
                found.append(features.numpy()[: len(some)])
                factor = float(scale.numpy())
        return np.concatenate(found), factor

    def _marked(self, text: str) -> list[int]:
        """Token ids between the marks of a text's begin and end; what stands behind is left out."""
        said = text_config(self.checkpoint.config)
        ids = self._encode_text(text, int(said["vocab_size"]))
        begin, end = mark_tokens(said)
        if end not in ids:
            ids = [*([] if begin in ids[:1] else [begin]), *ids, end]
        ids = ids[: ids.index(end) + 1]
        if len(ids) > self.context:
            raise UsageError(
                f"{short(text)} has {len(ids)} tokens, and the context is {self.context}; shorten"
                " it"
            )
        return ids


def _unit(rows: Array) -> Array:
    wide = rows.astype(np.float64)
    unit: Array = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


def _listed(images: Any) -> list[Any]:
    """Several images as a list; one alone is a list of one."""
    listed = [*images] if isinstance(images, list | tuple) else [images]
    if not listed:
        raise UsageError("there is no image; give at least one")
    return listed
