"""What is transparent is white, grey of any depth is as bright as its twin of eight bits, and broken EXIF is none.

The expected pixels are those of `convert_to_rgb` of transformers 5.24 where it is right.
"""

import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from service.errors import UnreadableImage
from service.media.images import decode_image, image_size
from service.media.pixels import Filter, Resize, Size, read_pictures, read_size
from tests.media.image_files import SIZE, drawing, image_file, png

FIELD = "messages[0].content[0].image_url"
ORIENTATION = 0x0112
RAMP = np.arange(256, dtype=np.uint8)


def pixels(content):
    resizes = (Resize(read_size(image_size(content, FIELD))),)
    return read_pictures(decode_image(content, resizes, Filter.BICUBIC, FIELD), resizes)[0]


def on_white(image):
    """Return the pixels of an image as transformers 5.24 makes them."""
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return np.asarray(Image.alpha_composite(white, image.convert("RGBA")).convert("RGB"))


def with_alpha(alpha):
    image = drawing()
    image.putalpha(Image.fromarray(np.broadcast_to(np.asarray(alpha, np.uint8), SIZE[::-1])))
    return image


def with_chunk(content, kind, data, *, is_late=False):
    """Return a PNG with another chunk before its pixels, or behind them."""
    chunk = struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    at = content.index(b"IEND" if is_late else b"IDAT") - 4
    return content[:at] + chunk + content[at:]


def exif(orientation):
    found = Image.Exif()
    found[ORIENTATION] = orientation
    return found


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("alpha", [np.linspace(0, 255, SIZE[0]), 0, 255, 128], ids=["ramp", "none", "all", "half"])
def test_what_is_transparent_shows_white_and_not_the_colour_below(kind, alpha):
    image = with_alpha(alpha)
    content = image_file(kind, image, lossless=True, exact=True)
    np.testing.assert_array_equal(pixels(content), on_white(image))


def test_an_image_that_is_transparent_all_over_is_white():
    for hidden in ((0, 0, 0, 0), (255, 0, 0, 0)):
        assert (pixels(image_file("PNG", Image.new("RGBA", (9, 9), hidden))) == 255).all()


def test_grey_with_alpha_is_on_white():
    image = with_alpha(np.linspace(0, 255, SIZE[0])).convert("LA")
    np.testing.assert_array_equal(pixels(image_file("PNG", image)), on_white(image))


@pytest.mark.parametrize("transparency", [3, bytes(range(256))], ids=["one entry", "an alpha for each"])
def test_palettes_with_transparency_are_on_white(transparency):
    content = image_file("PNG", drawing().convert("P"), transparency=transparency)
    opened = Image.open(io.BytesIO(content))
    assert "transparency" in opened.info
    np.testing.assert_array_equal(pixels(content), on_white(opened))


def test_a_gif_with_transparency_is_on_white():
    content = image_file("GIF", drawing().convert("P"), transparency=7)
    np.testing.assert_array_equal(pixels(content), on_white(Image.open(io.BytesIO(content))))


def grey_png(values, depth):
    """Return a PNG of one row of grey."""
    if depth == 16:
        row = np.asarray(values, ">u2").tobytes()
    else:
        bits = "".join(f"{value:0{depth}b}" for value in values)
        row = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8))
    return png(len(values), 1, zlib.compress(b"\0" + row), depth=depth, colour=0)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_grey_of_fewer_bits_has_its_transparent_value_too(depth):
    values = range(min(2**depth, 199))
    for transparent in (0, 1, values[-1]):
        content = with_chunk(grey_png(values, depth), b"tRNS", struct.pack(">H", transparent))
        expected = [255 if value == transparent else value * 255 // (2**depth - 1) for value in values]
        assert pixels(content)[0, :, 0].tolist() == expected


def test_grey_of_sixteen_bits_is_as_its_twin_of_eight():
    for deep in (RAMP.astype(np.uint16) * 257, RAMP.astype(np.uint16) << 8):
        image = Image.fromarray(np.broadcast_to(deep, (4, 256)).copy())
        assert image.mode == "I;16"
        twin = Image.fromarray(np.broadcast_to(RAMP, (4, 256)).copy())
        np.testing.assert_array_equal(pixels(image_file("PNG", image)), pixels(image_file("PNG", twin)))


def test_a_transparent_value_of_sixteen_bits_is_white_alone():
    content = with_chunk(grey_png([0, 256, 257, 511, 65535], 16), b"tRNS", struct.pack(">H", 257))
    assert pixels(content)[0, :, 0].tolist() == [0, 1, 255, 1, 255]


@pytest.mark.parametrize("depth", [8, 16])
def test_a_transparent_colour_is_white(depth):
    dtype, step = (">u2", 257) if depth == 16 else ("u1", 1)
    row = (np.array([[1, 2, 3], [1, 2, 4], [200, 2, 3]]) * step).astype(dtype).tobytes()
    content = png(3, 1, zlib.compress(b"\0" + row), depth=depth, colour=2)
    content = with_chunk(content, b"tRNS", struct.pack(">HHH", step, 2 * step, 3 * step))
    assert pixels(content)[0].tolist() == [[255] * 3, [1, 2, 4], [200, 2, 3]]


@pytest.mark.parametrize("mode", ["1", "L", "CMYK"])
def test_other_modes_are_as_pillow_makes_them(mode):
    content = image_file("JPEG" if mode == "CMYK" else "PNG", drawing().convert(mode))
    np.testing.assert_array_equal(pixels(content), np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))


def test_the_first_of_several_pictures_is_seen():
    image, other = drawing(), drawing().rotate(180)
    for kind in ("PNG", "WEBP", "GIF", "MPO"):
        content = image_file(kind, image, save_all=True, append_images=[other], lossless=True)
        assert Image.open(io.BytesIO(content)).n_frames == 2
        near = np.abs(pixels(content).astype(int) - np.asarray(image)).mean()
        assert near < 12 < np.abs(np.asarray(other).astype(int) - np.asarray(image)).mean(), kind


@pytest.mark.parametrize("is_late", [False, True])
def test_an_orientation_may_stand_behind_the_pixels(is_late):
    content = with_chunk(image_file("PNG"), b"eXIf", exif(6).tobytes()[6:], is_late=is_late)
    np.testing.assert_array_equal(pixels(content), np.asarray(drawing().rotate(270, expand=True)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_is_as_none(kind):
    plain = pixels(image_file(kind))
    good, chance = exif(6).tobytes(), random.Random(56)
    broken = [b"Exif\0\0", b"Exif\0\0" + b"\xff" * 40, good[:-9], b"Exif\0\0II*\0\xff\xff\xff\xff", b"not EXIF"]
    for orientation in (0, 9, 65535):
        broken.append(exif(orientation).tobytes())
    for data in broken:
        np.testing.assert_array_equal(pixels(image_file(kind, exif=data)), plain)
    for _ in range(100):
        data = bytearray(good)
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        assert sorted(pixels(image_file(kind, exif=bytes(data))).shape) == sorted(plain.shape)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_right_exif_turns_the_image(kind):
    size = read_size(image_size(image_file(kind, exif=exif(6)), FIELD))
    assert size == Size(*SIZE[::-1])


def test_a_truncated_image_says_that_it_cannot_be_decoded():
    for kind in ("PNG", "JPEG", "WEBP", "GIF"):
        content = image_file(kind)
        with pytest.raises(UnreadableImage, match="cannot be decoded"):
            pixels(content[: len(content) // 2])
