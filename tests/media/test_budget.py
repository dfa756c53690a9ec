"""Images of Gemma 4 equal those of transformers' processor with Pillow, in sizes and pixels."""

import numpy as np
import pytest

from service.errors import MalformedCheckpoint
from service.media.budget import read_budget
from service.media.images import decode_image, image_size
from service.media.pixels import Size, read_pictures, read_size
from tests.media.image_files import drawing, image_file, modes, opened

PATCH = 4
FILE = {
    **{
        "do_normalize": False,
        "image_mean": [0.0] * 3,
        "image_std": [1.0] * 3,
        "resample": 3,
        "rescale_factor": 1 / 255,
    },
    **{"patch_size": PATCH, "pooling_kernel_size": 3, "max_soft_tokens": 70},
}
SIZES = [(w, h) for w in (1, 4, 12, 31, 64, 100) for h in (2, 8, 20, 63, 127, 190)]


def scaler_of(values=FILE, padded_rows=(64, 140)):
    return read_budget("test", values, patch_size=PATCH, merge_size=3, padded_rows=padded_rows)


def check(scaler, content, **options):
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    plan = scaler.plan(read_size(image_size(content, "image")))
    answer = decode_image(content, plan.resizes, scaler.resampling, "image")
    [part] = scaler.shown(plan, read_pictures(answer, plan.resizes))
    made = Gemma4ImageProcessorPil(**(FILE | options)).preprocess([opened(content)])
    assert [part.num_rows] == list(made["num_soft_tokens_per_image"]) == [plan.rows * plan.columns]
    patches, grid = part.features
    places = np.asarray(made["image_position_ids"][0])
    used = places[: 9 * part.num_rows]
    assert part.grid is None
    assert list(grid) == [3 * plan.rows, 3 * plan.columns] == [used[:, 1].max() + 1, used[:, 0].max() + 1]
    squares = patches[: 9 * part.num_rows].reshape(plan.rows, plan.columns, 3, 3, 3, PATCH, PATCH)
    by_place = squares.transpose(0, 2, 1, 3, 5, 6, 4).reshape(len(used), -1)
    seen = by_place * np.float32(1 / 255)
    np.testing.assert_allclose(seen, np.asarray(made["pixel_values"][0])[: len(used)], atol=1e-5, rtol=0)


def test_images_of_every_size_have_the_patches_that_transformers_cuts():
    scaler = scaler_of()
    for width, height in SIZES:
        check(scaler, image_file("PNG", drawing(width, height)))


@pytest.mark.parametrize("name", modes())
def test_images_of_every_mode_have_the_pixels_that_transformers_sees(name):
    check(scaler_of(), modes()[name])


def test_the_filter_and_the_budget_are_those_of_the_file():
    for options in ({"resample": 2}, {"max_soft_tokens": 140}, {"do_normalize": True}):
        check(scaler_of(FILE | options), image_file("PNG"), **options)


def test_an_image_has_no_more_tokens_than_are_compiled_and_few_if_little_is_asked():
    scaler = scaler_of(FILE | {"max_soft_tokens": 1120}, (64, 280))
    for size in (Size(4000, 3000), Size(30, 20), Size(20_000, 100), Size(1, 200)):
        plan, coarse = scaler.plan(size), scaler.plan(size, is_coarse=True)
        assert scaler.fewest_rows <= plan.rows * plan.columns <= 280
        assert 70 // 4 <= coarse.rows * coarse.columns <= 70


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "is missing"),
        (FILE | {"patch_size": 14}, "patch_size = 14"),
        (FILE | {"pooling_kernel_size": 2}, "pooling_kernel_size = 2"),
        (FILE | {"max_soft_tokens": 100}, "max_soft_tokens = 100"),
        (FILE | {"do_normalize": True, "image_mean": [0.5] * 3}, "image_mean"),
        (FILE | {"do_rescale": False}, "do_rescale"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(values, reason):
    with pytest.raises(MalformedCheckpoint, match=reason):
        scaler_of(values)
