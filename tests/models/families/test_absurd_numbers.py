"""A configuration of a kilobyte that asks for the absurd is refused, or described, without taking memory."""

import contextlib
import tracemalloc

import pytest

from service.errors import UnsupportedModel
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from tests.models.families.test_descriptions import CONFIGS

MAX_BYTES = 50 * 2**20
ABSURD = 300_000  # with which a layer, or an expert, for each takes hundreds of megabytes
NUMBERS = sorted(
    {key for config in CONFIGS.values() for key, value in config.items() if type(value) is int and value > 0}
)


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_of_any_size_takes_no_memory(key):
    config = next(config for config in CONFIGS.values() if key in config)
    tracemalloc.start()
    try:
        with contextlib.suppress(UnsupportedModel):
            decoder_weight_specs(read_config("m", config | {key: ABSURD}))
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
