"""Opening images that nobody vouches for: by Pillow, within limits, as RGB of 8 bits.

A file is read up to ``MOST_BYTES``, and decoded only when its header says at most ``MOST_PIXELS``.
"""

from __future__ import annotations

import os
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

from ptir.errors import ImageError, UnsupportedError, UsageError
from ptir.files import read_file, read_path

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the formats that are read; of an animation the first picture."""
MOST_BYTES: Final = 1 << 28
MOST_PIXELS: Final = 1 << 26
"""Of an image and of what it is resized to: 192 MiB as RGB."""
START_OF_SCAN: Final = b"\xff\xda"
MOST_SCANS: Final = 100
"""Of a JPEG file, each of which goes over all pixels; encoders write about ten."""
WIDE: Final = ("I;16", "I;16L", "I;16B", "I")
"""Pillow's names of grey with 16 bits; the last has 32, of which 16 are used."""
SMALLER: Final = "make it smaller"
EXTRA: Final = "pip install 'ptir-core[vision]'"

Given: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO | np.ndarray[Any, Any] | Image.Image"
"""An image: a path, a file's bytes, a file, an array u8[H,W,3] or u8[H,W], or one of Pillow's."""


def open_image(given: Given) -> Image.Image:
    """The image as RGB, turned as its EXIF orientation says; transparency is left out.

    What is under transparent places is kept as it is stored, as torchvision and Transformers do.
    Raises ``ImageError`` for a file that is missing, damaged, no image or too large, ``UsageError``
    for what is none of ``Given``, and ``UnsupportedError`` without Pillow.
    """
    pillow = pillow_image()
    if isinstance(given, pillow.Image):
        return _as_rgb(given, "the image")
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        return _decoded(read_path(path, MOST_BYTES, ImageError, SMALLER), str(path))
    if isinstance(given, bytes | bytearray | memoryview):
        return _decoded(bytes(given), "the image")
    if hasattr(given, "read"):
        name = getattr(given, "name", None)
        held = read_file(given, "the file", MOST_BYTES, ImageError, SMALLER)
        return _decoded(held, name if isinstance(name, str) else "the image")
    if hasattr(given, "__array__"):
        return _from_array(given)
    raise UsageError(
        f"an image is {type(given).__name__}; give a path, bytes, an array u8[H,W,3] or an image of"
        " Pillow"
    )


def pillow_image() -> Any:
    """Pillow's module ``Image``; raises ``UnsupportedError`` where it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(f"images need Pillow, which is not installed: {EXTRA}") from error
    return Image


def check_pixels(width: int, height: int, what: str) -> None:
    """Raise ``ImageError`` for more pixels than are read."""
    if width * height > MOST_PIXELS:
        raise ImageError(
            f"{what} has {width} x {height} pixels, and at most {MOST_PIXELS:,} are read; make it"
            " smaller"
        )
    if not width or not height:
        raise ImageError(f"{what} has {width} x {height} pixels; there is nothing to see")


def _decoded(held: bytes, name: str) -> Image.Image:
    pillow = pillow_image()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are judged here, and of metadata
            image = pillow.open(BytesIO(held), formats=FORMATS)
    except pillow.UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise ImageError(
            f"{name}: is no image of a kind that is read ({known}); convert it"
        ) from error
    except pillow.DecompressionBombError as error:
        raise ImageError(
            f"{name} has too many pixels, and at most {MOST_PIXELS:,} are read; make it smaller"
        ) from error
    except Exception as error:
        raise ImageError(f"{name}: the file is damaged: {error}") from error
    if image.format == "JPEG":
        _check_scans(held, name)
    return _as_rgb(image, name)


def _check_scans(held: bytes, name: str) -> None:
    """Refuse a file of a few bytes for each of thousands of scans, which would take minutes.

    Within a scan no other marker has these bytes; pictures in metadata have a few more.
    """
    scans = held.count(START_OF_SCAN)
    if scans > MOST_SCANS:
        raise ImageError(
            f"{name}: has {scans:,} scans, and at most {MOST_SCANS} are read; save it anew, as a"
            " baseline JPEG"
        )


def _as_rgb(image: Image.Image, name: str) -> Image.Image:
    from PIL import ImageOps

    check_pixels(*image.size, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged EXIF record is none
            image.load()
            return _converted(ImageOps.exif_transpose(image), name)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"{name}: the file is damaged or cut short: {error}") from error


def _converted(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode in WIDE:
        return _narrowed(image, name)
    if image.mode == "F":
        raise ImageError(
            f"{name}: its pixels are floating-point numbers without a range; convert it to 8 bits"
        )
    if image.mode == "P":
        image = image.convert("RGBA")  # its palette may have transparency, which warns otherwise
    return image.convert("RGB")


def _narrowed(image: Image.Image, name: str) -> Image.Image:
    """Grey of 16 bits in 8, each value rounded to nearest: Pillow itself would cut at 255."""
    import numpy as np

    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ImageError(f"{name}: its grey has more than 16 bits; convert it to 8")
    narrow = ((values * 255 + 32767) // 65535).astype(np.uint8)
    return pillow_image().fromarray(narrow).convert("RGB")  # type: ignore[no-any-return]


def _from_array(given: Any) -> Image.Image:
    import numpy as np

    values = np.asarray(given)
    shape = "x".join(map(str, values.shape))
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or values.shape[2:] not in ((), (3,)):
        raise UsageError(
            f"an image is an array {values.dtype}[{shape}]; give u8[H,W,3] or u8[H,W], or what is"
            " prepared already to forward()"
        )
    check_pixels(values.shape[1], values.shape[0], "the array")
    return pillow_image().fromarray(np.ascontiguousarray(values)).convert("RGB")  # type: ignore[no-any-return]
