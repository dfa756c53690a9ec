"""Tiles equal those of transformers' processor with Pillow, in sizes and pixels."""

import numpy as np
import pytest

from service.errors import MalformedCheckpoint
from service.media.images import decode_image, image_size
from service.media.pixels import Size, read_pictures, read_size
from service.media.tiles import Tiler, read_square, read_tiler
from tests.media.image_files import drawing, image_file, modes, opened

TILE, EDGE = 32, 128
SIZES = [(w, h) for w in (1, 2, 31, 32, 33, 100) for h in (1, 3, 32, 64, 127, 190)]
FILE = {"size": {"longest_edge": EDGE}, "max_image_size": {"longest_edge": TILE}, "resample": 1}


def expected(content, *, splits=True, **options):
    """Return what transformers makes of a file: pixels from -1 to 1, [tile, channel, row, column], and the grid."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    processor = Idefics3ImageProcessorPil(**(FILE | options), do_image_splitting=splits)
    made = processor.preprocess([[opened(content)]], return_row_col_info=True)
    return made["pixel_values"][0], made["rows"][0][0], made["cols"][0][0]


def tiles_of(tiler, content, *, is_coarse=False):
    tiling = tiler.plan(read_size(image_size(content, "image")), is_coarse=is_coarse)
    answer = decode_image(content, tiling.resizes, tiler.resampling, "image")
    return tiling, np.stack([part.features for part in tiler.shown(tiling, read_pictures(answer, tiling.resizes))])


def check(tiler, content, *, is_coarse=False, **options):
    tiling, tiles = tiles_of(tiler, content, is_coarse=is_coarse)
    pixels, rows, columns = expected(content, splits=not is_coarse, **options)
    assert (tiling.rows, tiling.columns, tiling.num_tiles) == (rows, columns, len(pixels))
    seen = (tiles.transpose(0, 3, 1, 2) * np.float32(1 / 255) - 0.5) / 0.5
    np.testing.assert_allclose(seen, pixels, atol=1e-5, rtol=0)


def test_images_of_every_size_have_the_tiles_that_transformers_cuts():
    tiler = read_tiler("test", FILE, tile_size=TILE, tile_rows=4)
    for width, height in SIZES:
        check(tiler, image_file("PNG", drawing(width, height)))


@pytest.mark.parametrize("name", modes())
def test_images_of_every_mode_have_the_pixels_that_transformers_sees(name):
    tiler = read_tiler("test", FILE, tile_size=TILE, tile_rows=4)
    check(tiler, modes()[name])
    check(tiler, modes()[name], is_coarse=True)


def test_the_filter_and_the_edge_are_those_of_the_file():
    for options in ({"resample": 3}, {"size": {"longest_edge": 32}}, {"size": {"longest_edge": 70}}):
        check(read_tiler("test", FILE | options, tile_size=TILE, tile_rows=4), image_file("PNG"), **options)


@pytest.mark.parametrize("max_rows", [20, 8, 4, 1])
def test_an_image_of_too_many_tokens_is_one_of_a_smaller_edge(max_rows):
    tiler = read_tiler("test", FILE, tile_size=TILE, tile_rows=4, max_rows=max_rows)
    content = image_file("PNG", drawing(90, 60))
    tiling, _ = tiles_of(tiler, content)
    assert sum(tiler.num_rows(tiling)) <= max(max_rows, 4)
    edge = max(tiling.resizes[0].size)
    smaller = read_tiler("test", FILE | {"size": {"longest_edge": edge}}, tile_size=TILE, tile_rows=4)
    if tiling.rows:
        assert tiling == smaller.plan(read_size(image_size(content, "image")))
    assert sum(tiler.num_rows(tiler.plan(Size(90, 60), is_coarse=True))) == 4


def test_an_image_that_is_too_long_for_any_file_is_bounded():
    tiler = Tiler(512, 64, 4096)
    assert tiler.plan(Size(20_000, 100)).resizes[0].size == (4096, 20)
    assert tiler.plan(Size(30_000, 30_000)).num_tiles == 65


SQUARE = {"size": {"height": TILE, "width": TILE}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def check_square(content, **options):
    """Check that the picture of a file is that of transformers' processor of Gemma 3."""
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    tiling, [picture] = tiles_of(read_square("test", SQUARE | options, tile_size=TILE, tile_rows=9), content)
    made = Gemma3ImageProcessorPil(**(SQUARE | options)).preprocess([opened(content)], return_tensors="np")
    seen = (picture.transpose(2, 0, 1) * np.float32(1 / 255) - 0.5) / 0.5
    np.testing.assert_allclose(seen, made["pixel_values"][0], atol=1e-5, rtol=0)
    assert len(tiling.resizes) == tiling.num_tiles == 1


def test_a_square_of_every_size_is_the_one_that_transformers_makes():
    for width, height in SIZES:
        check_square(image_file("PNG", drawing(width, height)))


@pytest.mark.parametrize("name", modes())
def test_a_square_of_every_mode_has_the_pixels_that_transformers_sees(name):
    check_square(modes()[name])
    check_square(modes()[name], resample=3)


def test_a_square_has_as_many_tokens_whatever_the_image_is():
    square = read_square("test", SQUARE, tile_size=TILE, tile_rows=9)
    plans = [
        square.plan(Size(width, height), is_coarse=coarse) for width, height, coarse in ((1, 1, False), (900, 5, True))
    ]
    assert [square.num_rows(plan) for plan in plans] == [[9], [9]]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "is missing"),
        (SQUARE | {"do_pan_and_scan": True}, "do_pan_and_scan"),
        (SQUARE | {"size": {"height": 64, "width": 64}}, "size = "),
        (SQUARE | {"size": {"longest_edge": TILE}}, "size = "),
        (SQUARE | {"image_std": [0.2, 0.2, 0.2]}, "image_std"),
    ],
)
def test_what_makes_no_square_of_the_encoders_size_is_refused_by_name(values, reason):
    with pytest.raises(MalformedCheckpoint, match=reason):
        read_square("test", values, tile_size=TILE, tile_rows=9)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "is missing"),
        (FILE | {"image_mean": [0.1, 0.2, 0.3]}, "image_mean"),
        (FILE | {"do_resize": False}, "do_resize"),
        (FILE | {"rescale_factor": 1.0}, "rescale_factor"),
        (FILE | {"resample": 99}, "resample"),
        (FILE | {"size": {"height": 3, "width": 3}}, "size"),
        (FILE | {"size": 128}, "size"),
        (FILE | {"max_image_size": {"longest_edge": 64}}, "max_image_size is 64 pixels"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(values, reason):
    with pytest.raises(MalformedCheckpoint, match=reason):
        read_tiler("test", values, tile_size=TILE, tile_rows=4)
