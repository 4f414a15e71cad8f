"""How a model's images are prepared: resized, cropped, scaled and normalized, as its files say.

Transformers says it in ``preprocessor_config.json``, timm in ``pretrained_cfg``. Both are read into
one record. Sizes are (height, width).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from ptir.errors import CheckpointError, short
from ptir.vision.image_file import check_pixels

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

Config = Mapping[str, Any]
Size = tuple[int, int]
Three = tuple[float, float, float]

LARGEST: Final = 1 << 14
"""Pixels along an edge that a configuration may ask for."""
NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)
"""Pillow's numbers of ways to interpolate, which configurations use."""
INTERPOLATIONS: Final = {
    "nearest": NEAREST,
    "lanczos": LANCZOS,
    "bilinear": BILINEAR,
    "bicubic": BICUBIC,
    "box": BOX,
    "hamming": HAMMING,
}
STANDARD: Final = [0.5, 0.5, 0.5]
CLIP_MEAN: Final = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD: Final = [0.26862954, 0.26130258, 0.27577711]


@dataclass(frozen=True)
class Preprocessing:
    """The steps, in this order; None leaves one out.

    The image is resized so that its shorter edge is ``shortest``, or to ``exact``; a center of the
    size ``crop`` is cut out, with black around an image that is smaller. Values 0 to 255 are
    multiplied by ``scale``, then ``mean`` is taken off and the rest divided by ``std``.
    """

    shortest: int | None = None
    exact: Size | None = None
    resample: int = BILINEAR
    crop: Size | None = None
    centered_up: bool = False
    """Whether a margin of an odd size is rounded to even as torchvision does, not down."""
    scale: float | None = 1 / 255
    mean: Three | None = None
    std: Three | None = None

    @property
    def size(self) -> Size | None:
        """What every prepared image has; None where it depends on the image."""
        return self.crop or self.exact

    def __call__(self, image: Image.Image) -> np.ndarray[Any, Any]:
        """An RGB image as f32[H,W,3]; raises ``ImageError`` for one that gets too large."""
        import numpy as np

        image = self._cropped(self._resized(image))
        pixels: np.ndarray[Any, Any] = np.asarray(image, np.float32)
        if self.scale is not None:
            pixels = pixels * np.float32(self.scale)
        if self.mean is not None and self.std is not None:
            pixels = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return pixels

    def _resized(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        if self.exact is not None:
            height, width = self.exact
        elif self.shortest is not None:
            short_edge, long_edge = sorted((width, height))
            longer = int(self.shortest * long_edge / short_edge)
            landscape = width >= height
            width, height = (longer, self.shortest) if landscape else (self.shortest, longer)
        if (width, height) == image.size:
            return image
        check_pixels(width, height, f"an image of {image.size[0]} x {image.size[1]}, resized,")
        return image.resize((width, height), self.resample)

    def _cropped(self, image: Image.Image) -> Image.Image:
        if self.crop is None or self.crop == (image.size[1], image.size[0]):
            return image
        left, top = (
            self._offset(whole, part)
            for whole, part in zip(image.size, reversed(self.crop), strict=True)
        )
        return image.crop((left, top, left + self.crop[1], top + self.crop[0]))

    def _offset(self, whole: int, part: int) -> int:
        if not self.centered_up:
            return (whole - part) // 2
        return round((whole - part) / 2) if whole >= part else -((part - whole) // 2)


class Processor(NamedTuple):
    """What a class of Transformers' image processors does unless its file says otherwise.

    ``square`` is what a size of one number means: both edges, not the shorter one.
    """

    values: Config
    square: bool = False


_CLIP: Final = {
    "size": {"shortest_edge": 224},
    "resample": BICUBIC,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
}
_CONVNEXT: Final = "ConvNext"

PROCESSORS: Final[Mapping[str, Processor]] = {
    "Bit": Processor(_CLIP),
    "CLIP": Processor(_CLIP),
    _CONVNEXT: Processor(
        {"size": {"shortest_edge": 384}, "resample": BICUBIC, "do_center_crop": False}
    ),
    "MobileNetV2": Processor(
        {
            "size": {"shortest_edge": 256},
            "resample": BILINEAR,
            "do_center_crop": True,
            "crop_size": {"height": 224, "width": 224},
        }
    ),
    "ViT": Processor(
        {
            "size": {"height": 224, "width": 224},
            "resample": BILINEAR,
            "do_center_crop": False,
        },
        square=True,
    ),
}
"""By what stands before one of ``ENDS``."""
ENDS: Final = ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor")
"""Of the names of classes of Transformers."""


def preprocessing_of(config: Config, preprocessor: Config) -> Preprocessing:
    """How images are prepared by a ``preprocessor_config.json``, else by timm's ``config``.

    Raises ``CheckpointError`` for what is missing, of the wrong kind or not implemented.
    """
    if preprocessor:
        return _of_transformers(preprocessor)
    return _of_timm(config)


# --- Transformers ---


def _of_transformers(given: Config) -> Preprocessing:
    where = "preprocessor_config.json"
    name, processor = _processor(given)
    config = {"image_mean": STANDARD, "image_std": STANDARD} | dict(processor.values)
    config |= {key: value for key, value in given.items() if value is not None}
    exact, shortest = _size(config, processor.square) if _on(config, "do_resize") else (None, None)
    crop = None
    if _on(config, "do_center_crop"):
        crop = _both_edges(config.get("crop_size"), f"{where}: crop_size")
    if name == _CONVNEXT and shortest is not None:
        exact, shortest, crop = _convnext(config, shortest, crop)
    normalized = _on(config, "do_normalize")
    return Preprocessing(
        shortest=shortest,
        exact=exact,
        resample=_resample(config.get("resample"), where),
        crop=crop,
        scale=_scale(config) if _on(config, "do_rescale") else None,
        mean=_three(config.get("image_mean"), f"{where}: image_mean") if normalized else None,
        std=_deviations(config.get("image_std"), f"{where}: image_std") if normalized else None,
    )


def _processor(given: Config) -> tuple[str, Processor]:
    found = given.get("image_processor_type") or given.get("feature_extractor_type")
    if isinstance(found, str):
        for end in (
            "ImageProcessorFast",
            "ImageProcessorPil",
            "ImageProcessor",
            "FeatureExtractor",
        ):
            name = found.removesuffix(end)
            if name != found and name in PROCESSORS:
                return name, PROCESSORS[name]
    known = ", ".join(f"{name}ImageProcessor" for name in PROCESSORS)
    _refuse("preprocessor_config.json: image_processor_type", found, f"one of {known}")


def _convnext(
    config: Config, edge: int, crop: Size | None
) -> tuple[Size | None, int | None, Size | None]:
    """Small images are cut out of larger ones, those of 384 and more are resized whole."""
    if edge >= 384:
        return (edge, edge), None, crop
    share = config.get("crop_pct", 224 / 256)
    return None, int(edge / _share(share, "preprocessor_config.json: crop_pct")), (edge, edge)


def _size(config: Config, square: bool) -> tuple[Size | None, int | None]:
    """The exact size, or the shorter edge."""
    found, where = config.get("size"), "preprocessor_config.json: size"
    if isinstance(found, Mapping):
        if {*found} == {"shortest_edge"}:
            return None, _edge(found["shortest_edge"], where)
        return _both_edges(found, where), None
    edge = _edge(found, where)
    return ((edge, edge), None) if square else (None, edge)


def _both_edges(found: Any, where: str) -> Size:
    if isinstance(found, Mapping) and {*found} == {"height", "width"}:
        return _edge(found["height"], where), _edge(found["width"], where)
    if isinstance(found, Mapping):
        _refuse(where, dict(found), "a size with height and width, or with shortest_edge alone")
    edge = _edge(found, where)
    return edge, edge


def _scale(config: Config) -> float:
    found = config.get("rescale_factor", 1 / 255)
    if type(found) in (int, float) and 0 < found <= 1e6:
        return float(found)
    _refuse("preprocessor_config.json: rescale_factor", found, "a number > 0")


def _on(config: Config, key: str) -> bool:
    found = config.get(key, True)
    if type(found) is not bool:
        _refuse(f"preprocessor_config.json: {key}", found, "true or false")
    return found


def _resample(found: Any, where: str) -> int:
    if type(found) is int and 0 <= found < len(INTERPOLATIONS):
        return found
    _refuse(f"{where}: resample", found, f"an integer from 0 to {len(INTERPOLATIONS) - 1}")


# --- timm ---


def _of_timm(config: Config) -> Preprocessing:
    found = config.get("pretrained_cfg", config)
    given = found if isinstance(found, Mapping) else {}
    size = given.get("input_size")
    if not isinstance(size, list | tuple) or len(size) != 3 or size[0] != 3:
        _refuse("config.json: input_size", size, "[3, height, width]")
    height, width = (_edge(one, "config.json: input_size") for one in size[1:])
    mode = given.get("crop_mode") or "center"
    name = given.get("interpolation", "bilinear")
    if name not in INTERPOLATIONS:
        _refuse("config.json: interpolation", name, f"one of {', '.join(INTERPOLATIONS)}")
    share = given.get("crop_pct")
    share = _share(0.875 if share is None else share, "config.json: crop_pct")
    resized = math.floor(height / share), math.floor(width / share)
    if mode == "squash":
        exact, shortest = resized, None
    elif mode == "center" and height == width:
        exact, shortest = None, resized[0]
    else:
        _refuse("config.json: crop_mode", mode, "squash, or center with a square input_size")
    return Preprocessing(
        shortest=shortest,
        exact=exact,
        resample=INTERPOLATIONS[name],
        crop=(height, width),
        centered_up=True,
        mean=_three(given.get("mean"), "config.json: mean"),
        std=_deviations(given.get("std"), "config.json: std"),
    )


# --- both ---


def _edge(found: Any, where: str) -> int:
    if type(found) is int and 1 <= found <= LARGEST:
        return found
    _refuse(where, found, f"an integer from 1 to {LARGEST}")


def _share(found: Any, where: str) -> float:
    if type(found) in (int, float) and 0.01 <= found <= 1:
        return float(found)
    _refuse(where, found, "a number from 0.01 to 1")


def _three(found: Any, where: str) -> Three:
    listed = [found] * 3 if type(found) in (int, float) else found
    if (
        isinstance(listed, list | tuple)
        and len(listed) == 3
        and all(type(one) in (int, float) and abs(one) <= 1e6 for one in listed)
    ):
        return float(listed[0]), float(listed[1]), float(listed[2])
    _refuse(where, found, "three numbers")


def _deviations(found: Any, where: str) -> Three:
    three = _three(found, where)
    if min(three) <= 0:
        _refuse(where, found, "three numbers > 0")
    return three


def _refuse(where: str, found: Any, rule: str) -> NoReturn:
    raise CheckpointError(
        f"{where} {short(found)} must be {rule}; correct it, or fetch the file again"
    )
