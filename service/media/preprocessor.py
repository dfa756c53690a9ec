"""The part of `preprocessor_config.json` that all image models share: normalization and the resampling filter."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import MalformedCheckpoint
from service.media.pixels import Filter

FILE = "preprocessor_config.json"
RESCALE_FACTOR = 1 / 255
HALVES = (0.5, 0.5, 0.5)  # the mean and the deviation with which pixels are from -1 to 1


def read_resampling(
    uri: str,
    values: Mapping[str, Any],
    default: Filter,
    mean: Sequence[float] | None = HALVES,
    deviation: Sequence[float] = HALVES,
) -> Filter:
    """Check a `preprocessor_config.json`, and return how images are scaled.

    Args:
        uri: the checkpoint, for errors.
        values: the file's.
        default: how they are scaled unless the file says it.
        mean: of red, green and blue, as the encoder takes pixels; None for one that takes those between 0 and 1.
        deviation: the same.

    Raises:
        MalformedCheckpoint: the file is missing, or asks for what is not done here.
    """
    if not values:
        raise MalformedCheckpoint(uri, FILE, "is missing; it says how the model takes images")
    expected_values: dict[str, Any] = {"do_resize": True, "do_rescale": True}
    if mean is not None:
        expected_values |= {"do_normalize": True, "image_mean": list(mean), "image_std": list(deviation)}
    elif values.get("do_normalize"):
        expected_values |= {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    for name, expected in expected_values.items():
        if values.get(name, expected) != expected:
            raise MalformedCheckpoint(uri, FILE, f"{name} = {values[name]!r} is not served; only {expected!r}")
    factor = values.get("rescale_factor", RESCALE_FACTOR)
    if not isinstance(factor, float) or not math.isclose(factor, RESCALE_FACTOR):
        raise MalformedCheckpoint(uri, FILE, f"rescale_factor = {factor!r} is not served; only 1/255")
    resampling = values.get("resample", default)
    if resampling not in tuple(Filter):
        raise MalformedCheckpoint(uri, FILE, f"resample = {resampling!r} is not served; only {[*map(int, Filter)]}")
    return Filter(resampling)


def check_sizes(uri: str, values: Mapping[str, Any], **sizes: int) -> None:
    """Check that the sizes in a `preprocessor_config.json` are those of the encoder.

    Args:
        uri: the checkpoint, for errors.
        values: the file's; a size that it leaves out is the encoder's.
        **sizes: the encoder's, by the file's names.

    Raises:
        MalformedCheckpoint: one differs.
    """
    for name, expected in sizes.items():
        if values.get(name, expected) != expected:
            raise MalformedCheckpoint(uri, FILE, f"{name} = {values[name]!r} is not that of config.json, {expected}")
