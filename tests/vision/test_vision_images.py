"""Image files that nobody vouches for: every kind is seen right, and what is damaged is refused."""

from __future__ import annotations

import io
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ptir.errors import ImageError, UnsupportedError, UsageError
from ptir.vision import image_file, open_image

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 9, 3), np.uint8)


def stored(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    held = io.BytesIO()
    image.save(held, kind, **options)
    return held.getvalue()


def seen(given: Any) -> np.ndarray[Any, Any]:
    found = open_image(given)
    assert found.mode == "RGB"
    return np.asarray(found)


def png(width: int, height: int, depth: int = 8, kind: int = 2, data: bytes = b"") -> bytes:
    """A PNG by its specification: a header, one block of data, an end."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def test_a_path_bytes_a_file_an_array_and_an_image_are_the_same(tmp_path: Path) -> None:
    held = stored(Image.fromarray(PIXELS))
    path = tmp_path / "x.png"
    path.write_bytes(held)
    for given in (path, str(path), held, io.BytesIO(held), PIXELS, Image.fromarray(PIXELS)):
        np.testing.assert_array_equal(seen(given), PIXELS)


def test_grey_palettes_and_transparency_become_rgb() -> None:
    grey = PIXELS[:, :, 0]
    np.testing.assert_array_equal(seen(grey), np.dstack([grey] * 3))
    np.testing.assert_array_equal(seen(stored(Image.fromarray(grey))), np.dstack([grey] * 3))
    clear = np.dstack([PIXELS, np.zeros((6, 9), np.uint8)])
    np.testing.assert_array_equal(seen(stored(Image.fromarray(clear))), PIXELS)
    two = Image.fromarray(np.dstack([grey, 255 - grey]))
    np.testing.assert_array_equal(seen(stored(two)), np.dstack([grey] * 3))
    bits = Image.fromarray(grey > 99)
    np.testing.assert_array_equal(seen(stored(bits)), np.dstack([(grey > 99) * 255] * 3))
    palette = Image.new("P", (3, 1))
    palette.putpalette([9, 8, 7, 200, 100, 50, 1, 2, 3])
    palette.putdata([1, 0, 2])
    held = stored(palette, transparency=bytes([0, 128, 255]))
    np.testing.assert_array_equal(seen(held), [[[200, 100, 50], [9, 8, 7], [1, 2, 3]]])


def test_cmyk_is_converted_and_animations_give_their_first_picture() -> None:
    inks = Image.new("CMYK", (2, 1), (0, 255, 255, 0))
    np.testing.assert_array_equal(seen(stored(inks, "TIFF")), [[[255, 0, 0]] * 2])
    red, blue = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue"))
    held = stored(red, "GIF", save_all=True, append_images=[blue])
    np.testing.assert_array_equal(seen(held), np.asarray(red))
    for kind in ("BMP", "PPM", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        np.testing.assert_array_equal(
            seen(stored(Image.fromarray(PIXELS), kind, **options)), PIXELS
        )


def test_grey_of_16_bits_is_scaled_and_not_cut() -> None:
    rows = b"".join(b"\0" + struct.pack(">2H", *row) for row in ((0, 65535), (257 * 100, 130)))
    wanted = np.array([[0, 255], [100, 1]])  # 130 / 257 is nearest to 1
    np.testing.assert_array_equal(seen(png(2, 2, 16, 0, rows))[:, :, 0], wanted)
    wide = Image.fromarray(np.array([[1 << 20]], np.int32))
    with pytest.raises(ImageError, match="more than 16 bits"):
        open_image(stored(wide, "TIFF"))
    with pytest.raises(ImageError, match="floating-point numbers without a range"):
        open_image(stored(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"))


@pytest.mark.parametrize(
    ("orientation", "turned"),
    [
        (1, PIXELS),
        (2, PIXELS[:, ::-1]),
        (3, PIXELS[::-1, ::-1]),
        (4, PIXELS[::-1]),
        (5, PIXELS.transpose(1, 0, 2)),
        (6, np.rot90(PIXELS, -1)),
        (7, PIXELS[::-1, ::-1].transpose(1, 0, 2)),
        (8, np.rot90(PIXELS)),
    ],
)
def test_an_image_is_turned_as_its_exif_orientation_says(orientation: int, turned: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(seen(stored(Image.fromarray(PIXELS), exif=exif)), turned)


NOISE = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_a_file_that_is_cut_short_is_refused(kind: str) -> None:
    held = stored(Image.fromarray(NOISE), kind)
    for length in (len(held) // 2, len(held) // 10, 9, 3):
        with pytest.raises(ImageError, match=r"damaged|is no image"):
            open_image(held[:length])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_damaged_bytes_give_an_image_or_a_typed_error(kind: str) -> None:
    rng = np.random.default_rng(4)
    held = np.frombuffer(stored(Image.fromarray(NOISE[:16, :16]), kind), np.uint8)
    for _ in range(60):
        damaged = held.copy()
        damaged[rng.integers(0, min(len(held), 400), 3)] = rng.integers(0, 256, 3)
        try:
            assert open_image(damaged.tobytes()).mode == "RGB"
        except ImageError as error:
            assert str(error).startswith("the image: ") or "pixels" in str(error)


def test_what_is_no_image_is_said_to_be_none(tmp_path: Path) -> None:
    for given in (b"", b"hello", b"%PDF-1.4", b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        with pytest.raises(ImageError, match="is no image of a kind that is read"):
            open_image(given)
    with pytest.raises(ImageError, match="cannot be read: No such file"):
        open_image(tmp_path / "no.png")
    with pytest.raises(ImageError, match="cannot be read: Is a directory"):
        open_image(tmp_path)
    with pytest.raises(ImageError, match="cannot be read: "):
        open_image("a\0b")
    for wrong in (3, None, np.zeros((2, 2)), np.zeros((2, 2, 4), np.uint8), io.StringIO("x")):
        with pytest.raises(UsageError):
            open_image(wrong)  # type: ignore[arg-type]


BILLION = 31623
GIF = bytearray(stored(Image.new("P", (2, 2)), "GIF"))
GIF[6:10] = struct.pack("<HH", 65535, 65535)
BMP_HEADER = (154, 0, 0, 54, 40, BILLION, BILLION, 1, 24, *[0] * 6)
WEBP_SIZE = struct.pack("<I", 16382 | 16382 << 14)
HUGE = {
    "PNG": png(BILLION, BILLION, data=b"\0" * 100),
    "BMP": b"BM" + struct.pack("<IHHIIiiHHIIiiII", *BMP_HEADER),
    "GIF": bytes(GIF),
    "PPM": b"P6 31623 31623 255\n",
    "WEBP": b"RIFF\x24\0\0\0WEBPVP8L\x10\0\0\0\x2f" + WEBP_SIZE + bytes(11),
    "PNG within Pillow's limit": png(9000, 9000, data=b"\0" * 100),
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_billion_pixels_are_refused_by_the_header_and_take_no_memory(kind: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=r"the image has .* pixels, and at most"):
            open_image(HUGE[kind])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_picture_in_thousands_of_scans_is_refused_before_it_is_decoded() -> None:
    """Each scan goes over all pixels: 2 MB of them kept a processor busy for two minutes."""
    buffer = io.BytesIO()
    picture = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    Image.fromarray(picture).save(buffer, "JPEG", progressive=True)
    held = buffer.getvalue()
    assert open_image(held).size == (80, 60)
    scans = held[held.index(b"\xff\xda") : -2]
    count = scans.count(b"\xff\xda")
    assert 1 < count < 20
    for times, right in ((100 // count - 1, True), (100 // count + 1, False)):
        many = held[:-2] + scans * times + held[-2:]
        if right:
            assert open_image(many).size == (80, 60)
            continue
        with pytest.raises(ImageError, match=rf"has {count * (times + 1)} scans, and at most 100"):
            open_image(many)


def test_a_file_without_an_end_is_read_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            assert size == image_file.MOST_BYTES + 1
            return bytes(size)

    monkeypatch.setattr(image_file, "MOST_BYTES", 1 << 16)
    with pytest.raises(ImageError, match="has more than 0 MiB; make it smaller"):
        open_image(Endless())  # type: ignore[arg-type]


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'ptir-core\[vision\]'"):
        open_image("x.png")
