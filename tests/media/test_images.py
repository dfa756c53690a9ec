"""Images to pixels, in a worker process: every format and mode, and files that are hostile."""

import io
import random
import zlib

import numpy as np
import pytest
from PIL import Image

from service.errors import ImageTooLaborious, ImageTooLarge, UnreadableImage
from service.media.images import MAX_PIXELS, decode_image, image_size
from service.media.pixels import Filter, Resize, Size, header, read_pictures, read_size
from service.worker.process import WorkerProcess
from tests.media.image_files import SIZE, drawing, image_file, modes, png

FIELD = "messages[0].content[1].image_url"
ORIENTATION = 0x0112
AS_IT_IS = (Resize(Size(*SIZE)),)
KINDS = ("PNG", "JPEG", "WEBP", "GIF")
NOTHING = bytes(100)


@pytest.fixture(scope="module")
def process():
    made = WorkerProcess(failure=ImageTooLaborious, memory_bytes=2**30, processor_s=20.0, max_answer_bytes=64 * 2**20)
    yield made
    made.end()


def pixels(process, content, resizes=AS_IT_IS, resampling=Filter.LANCZOS):
    answer = process.call(decode_image, content, resizes, resampling, FIELD).content
    return read_pictures(answer, resizes)


def size(process, content):
    return read_size(process.call(image_size, content, FIELD).content)


@pytest.mark.parametrize("name", sorted(modes().keys() - {"16 bits", "palette with transparency"}))
def test_every_mode_has_the_pixels_that_pillow_makes_of_it(process, name):
    content = modes()[name]
    assert size(process, content) == SIZE
    [picture] = pixels(process, content)
    np.testing.assert_array_equal(picture, np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_camera_was_held(process, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = image_file("PNG", exif=exif)
    turned = size(process, content)
    assert turned == (SIZE if orientation < 5 else SIZE[::-1])
    [picture] = pixels(process, content, (Resize(turned),))
    corners = {tuple(map(int, picture[row, column])) for row in (0, -1) for column in (0, -1)}
    assert corners == {tuple(map(int, np.asarray(drawing())[row, column])) for row in (0, -1) for column in (0, -1)}
    upright = {1: 0, 3: 180, 6: 270, 8: 90}.get(orientation)
    if upright is not None:
        np.testing.assert_array_equal(picture, np.asarray(drawing().rotate(upright, expand=True)))


def test_sizes_follow_one_from_the_other(process):
    resizes = (Resize(Size(20, 10)), Resize(Size(40, 30), is_wanted=False), Resize(Size(8, 8)))
    small, last = pixels(process, image_file("PNG"), resizes, Filter.BICUBIC)
    first = drawing().resize((20, 10), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(small, np.asarray(first))
    again = first.resize((40, 30), Image.Resampling.BICUBIC).resize((8, 8), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(last, np.asarray(again))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello, world", "format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>", "format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n" + NOTHING, "format"),
        (b"\x00\x00\x00\x18ftypheic" + NOTHING, "format"),
        (b"II*\x00" + NOTHING, "format"),
        (b"BM" + NOTHING, "format"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt " + NOTHING, "format"),
        (b"\x89PNG\r\n\x1a\n" + NOTHING, "decoded"),
        (b"\xff\xd8\xff" + NOTHING, "decoded"),
        (b"GIF89a" + NOTHING, "decoded"),
        (b"RIFF\x24\x00\x00\x00WEBPVP8 " + NOTHING, "decoded"),
        (png(0, 5), "no pixel|decoded"),
        (png(1, 30_000, zlib.compress(bytes(120_000))), "200 times"),
        (png(4, 4, zlib.compress(bytes(9))), "decoded"),
        (png(4, 4, b"this is not zlib"), "decoded"),
        (image_file("JPEG")[:200], "decoded"),
        (image_file("PNG")[:-40], "decoded"),
    ],
)
def test_other_content_is_refused_with_its_reason(process, content, reason):
    with pytest.raises(UnreadableImage, match=reason) as refused:
        pixels(process, content)
    assert refused.value.param == FIELD
    assert len(str(refused.value)) < 200


def test_pixels_are_bounded_before_any_is_decoded(process):
    bomb = png(10_000, 10_000, zlib.compress(bytes(30_001 * 10_000), 9)[:1000])
    assert len(bomb) < 1100
    for ask in (size, pixels):
        with pytest.raises(ImageTooLarge, match=f"{MAX_PIXELS:,} pixels"):
            ask(process, bomb)


def test_the_largest_image_is_decoded_within_the_limits(process):
    large = png(10_000, 5_000, zlib.compress(bytes(30_001 * 5_000), 9))
    [picture] = pixels(process, large, (Resize(Size(64, 32)),))
    assert not picture.any()


def test_a_single_pixel_and_a_megabyte_of_exif_are_an_image_too(process):
    [picture] = pixels(process, image_file("PNG", drawing(1, 1)), (Resize(Size(4, 4)),))
    assert picture.shape == (4, 4, 3)
    exif = Image.Exif()
    exif[0x9286] = b"a" * 1_000_000
    assert size(process, image_file("PNG", exif=exif)) == SIZE


def test_no_mutated_file_ends_the_process(process):
    size(process, image_file("PNG"))
    starts, chance = process.num_starts, random.Random(38)
    files = [*(image_file(kind) for kind in KINDS), *modes().values()]
    for number in range(400):
        content = bytearray(files[number % len(files)])
        for _ in range(chance.randrange(1, 20)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            pixels(process, bytes(content), (Resize(size(process, bytes(content))),))
        except (UnreadableImage, ImageTooLarge):
            continue
    assert process.num_starts == starts


@pytest.mark.parametrize(
    "answer",
    [b"", header(Size(2, 2), 1), header(Size(2, 2), 0) + bytes(12), b"PCM2" + header(Size(2, 2), 1)[4:] + bytes(12)],
)
def test_an_answer_that_is_not_what_was_asked_for_is_not_read(answer):
    with pytest.raises(ValueError, match="answer"):
        read_pictures(answer, [Resize(Size(2, 2))])


def test_a_size_without_pixels_is_not_read():
    with pytest.raises(ValueError, match="header"):
        read_size(header(Size(0, 2), 0))
