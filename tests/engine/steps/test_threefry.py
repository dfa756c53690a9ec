"""Random bits against those of jax."""

import jax
import numpy as np
from jax.extend.random import threefry_2x32 as jax_threefry_2x32

from service.engine.steps.threefry import threefry_2x32


def test_bits_are_those_of_jax():
    rng = np.random.default_rng(0)
    seeds, counters = rng.integers(0, 2**32, (2, 50, 2), np.uint32)
    first, second = jax.jit(threefry_2x32)(seeds, counters)
    expected = [jax_threefry_2x32(seed, counter) for seed, counter in zip(seeds, counters, strict=True)]
    np.testing.assert_array_equal(np.stack([first, second], axis=1), np.stack(expected))
