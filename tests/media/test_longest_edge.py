"""Images of Pixtral equal those of transformers' processor with Pillow, in sizes and pixels."""

import math

import numpy as np
import pytest

from service.errors import MalformedCheckpoint
from service.media.images import decode_image, image_size
from service.media.longest_edge import read_line_tokens, read_longest_edge
from service.media.pixels import Size, read_pictures, read_size
from service.models.families.mistral3 import PIXEL_DEVIATION, PIXEL_MEAN
from tests.media.image_files import drawing, image_file, modes, opened

PATCH, LONGEST = 4, 90
FILE = {
    "size": {"longest_edge": LONGEST},
    "patch_size": {"height": PATCH, "width": PATCH},
    "image_mean": list(PIXEL_MEAN),
    "image_std": list(PIXEL_DEVIATION),
    "resample": 3,
}
SIZES = [(w, h) for w in (1, 4, 12, 31, 64, 100) for h in (2, 8, 20, 63, 127, 190)]


def scaler_of(values=FILE, padded_rows=(16, 144)):
    pixels = (PIXEL_MEAN, PIXEL_DEVIATION)
    return read_longest_edge("test", values, patch_size=PATCH, merge_size=2, padded_rows=padded_rows, pixels=pixels)


def check(scaler, content, **options):
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    plan = scaler.plan(read_size(image_size(content, "image")))
    answer = decode_image(content, plan.resizes, scaler.resampling, "image")
    [part] = scaler.shown(plan, read_pictures(answer, plan.resizes))
    # The processor of the whole model asks for whole tokens.
    processor = PixtralImageProcessorPil(**(FILE | options), do_convert_rgb=True)
    made = processor.preprocess([opened(content)], patch_size={"height": 2 * PATCH, "width": 2 * PATCH})
    expected = np.asarray(made["pixel_values"][0])
    rows, columns = (edge // (2 * PATCH) for edge in expected.shape[1:])
    assert (plan.rows, plan.columns, part.num_rows, part.grid) == (rows, columns, rows * columns, None)
    patches, grid = part.features
    assert list(grid) == [2 * rows, 2 * columns]
    used = patches[: 4 * rows * columns].reshape(rows, columns, 2, 2, 3, PATCH, PATCH)
    picture = used.transpose(4, 0, 2, 5, 1, 3, 6).reshape(expected.shape)
    mean, deviation = (np.array(values, np.float32)[:, None, None] for values in (PIXEL_MEAN, PIXEL_DEVIATION))
    np.testing.assert_allclose((picture * np.float32(1 / 255) - mean) / deviation, expected, atol=1e-5, rtol=0)


def test_images_of_every_size_have_the_pixels_that_transformers_makes():
    scaler = scaler_of()
    for width, height in SIZES:
        if max(width, height) <= LONGEST * min(width, height):  # otherwise the processor fails
            check(scaler, image_file("PNG", drawing(width, height)))


@pytest.mark.parametrize("name", modes())
def test_images_of_every_mode_have_the_pixels_that_transformers_sees(name):
    check(scaler_of(), modes()[name])


def test_the_filter_and_the_edge_are_those_of_the_file():
    for options in ({"resample": 2}, {"size": {"longest_edge": 32}}, {"size": {"longest_edge": 71}}):
        check(scaler_of(FILE | options), image_file("PNG"), **options)


@pytest.mark.parametrize("most", [144, 30, 7, 1])
def test_an_image_of_too_many_tokens_has_a_smaller_edge(most):
    scaler = scaler_of(padded_rows=(most,))
    for size in (Size(1000, 700), Size(90, 90), Size(3, 4000), Size(40_000, 200)):
        plan = scaler.plan(size)
        assert 1 <= plan.rows * plan.columns <= most
        assert math.prod(plan.resizes[0].size) == plan.rows * plan.columns * (2 * PATCH) ** 2
    coarse = scaler_of(FILE | {"size": {"longest_edge": 1540}}, (4096,)).plan(Size(4000, 3000), is_coarse=True)
    assert 150 < coarse.rows * coarse.columns <= 256


def test_the_tokens_that_end_lines_and_images_are_those_of_the_processor():
    assert read_line_tokens("test", {}) == ("[IMG_BREAK]", "[IMG_END]")
    assert read_line_tokens("test", {"image_break_token": "|", "image_end_token": "."}) == ("|", ".")
    with pytest.raises(MalformedCheckpoint, match="image_break_token"):
        read_line_tokens("test", {"image_break_token": 12})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "is missing"),
        (FILE | {"patch_size": 14}, "patch_size = 14"),
        (FILE | {"patch_size": {"height": PATCH, "width": 2 * PATCH}}, "patch_size = "),
        (FILE | {"size": {"height": 64, "width": 64}}, "size = "),
        (FILE | {"size": {"longest_edge": 0}}, "size = "),
        (FILE | {"size": 64}, "size = 64"),
        (FILE | {"image_std": [0.5, 0.5, 0.5]}, "image_std"),
        (FILE | {"do_normalize": False}, "do_normalize"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(values, reason):
    with pytest.raises(MalformedCheckpoint, match=reason):
        scaler_of(values)
