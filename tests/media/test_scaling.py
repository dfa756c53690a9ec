"""Scaled images equal those of transformers' processor with Pillow, in sizes and pixels."""

import numpy as np
import pytest

from service.errors import MalformedCheckpoint
from service.media.images import decode_image, image_size
from service.media.pixels import Size, read_pictures, read_size
from service.media.scaling import read_scaler
from tests.media.image_files import drawing, image_file, modes, opened

PATCH = 4
EDGE = 2 * PATCH
FILE = {
    "size": {"shortest_edge": 9 * EDGE**2, "longest_edge": 40 * EDGE**2},
    "patch_size": PATCH,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
SIZES = [(w, h) for w in (1, 4, 12, 31, 64, 100) for h in (2, 8, 20, 63, 127, 190)]


def scaler_of(values=FILE, padded_rows=(16, 64)):
    return read_scaler("test", values, patch_size=PATCH, merge_size=2, padded_rows=padded_rows)


def check(scaler, content):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    plan = scaler.plan(read_size(image_size(content, "image")))
    answer = decode_image(content, plan.resizes, scaler.resampling, "image")
    [part] = scaler.shown(plan, read_pictures(answer, plan.resizes))
    made = Qwen2VLImageProcessorPil(**FILE).preprocess([opened(content)])
    [(frames, rows, columns)] = made["image_grid_thw"]
    patches, grid = part.features
    assert (frames, rows, columns) == (1, *grid) == (1, 2 * part.grid[0], 2 * part.grid[1])
    assert part.num_rows * 4 == rows * columns
    assert len(patches) in (4 * 16, 4 * 64)
    seen = (patches[: rows * columns] * np.float32(1 / 255) - 0.5) / 0.5
    expected = made["pixel_values"].reshape(rows * columns, 3, 2, PATCH**2)
    for frame in range(2):
        np.testing.assert_allclose(seen.reshape(rows * columns, 3, -1), expected[:, :, frame], atol=1e-5, rtol=0)


def test_images_of_every_size_have_the_patches_that_transformers_cuts():
    scaler = scaler_of()
    for width, height in SIZES:
        if max(width, height) <= 100 * min(width, height):
            check(scaler, image_file("PNG", drawing(width, height)))


@pytest.mark.parametrize("name", modes())
def test_images_of_every_mode_have_the_pixels_that_transformers_sees(name):
    check(scaler_of(), modes()[name])


def test_an_image_has_no_more_tokens_than_are_compiled_and_few_if_little_is_asked():
    scaler = scaler_of(FILE | {"size": {"shortest_edge": 64, "longest_edge": 10**9}}, padded_rows=(300, 1024))
    plan = scaler.plan(Size(4000, 3000))
    assert 900 < plan.rows * plan.columns <= 1024
    coarse = scaler.plan(Size(4000, 3000), is_coarse=True)
    assert 200 < coarse.rows * coarse.columns <= 256


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "is missing"),
        (FILE | {"patch_size": 14}, "patch_size = 14"),
        (FILE | {"merge_size": 4}, "merge_size = 4"),
        (FILE | {"size": {"shortest_edge": 0, "longest_edge": 0}}, "size"),
        (FILE | {"image_std": [0.2, 0.2, 0.2]}, "image_std"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(values, reason):
    with pytest.raises(MalformedCheckpoint, match=reason):
        scaler_of(values)
