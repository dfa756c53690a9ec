"""Sampling options of each slot, as arrays that stay on the device.

A prefill step carries the options of its sequences and leaves them in their slots. Decode steps read them there and
carry nothing, so the options cost the host no time per token. A slot's next owner overwrites them before they are read.
"""

from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from service.engine.limits import MAX_BIASED_TOKENS, MAX_STOP_IDS

HostOrDevice = Array | np.ndarray
NO_TOKEN = np.iinfo(np.int32).max  # fills unused places; outside every vocabulary, so that scatters drop it


class FloatOption(IntEnum):
    """The columns of `Options.floats`."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    PRESENCE = 4
    FREQUENCY = 5


class IntegerOption(IntEnum):
    """The columns of `Options.integers`."""

    TOP_K = 0
    STOPS_FROM = 1  # the first position at which a stop token may be sampled
    LOGPROBS = 2  # -1: not requested
    PROMPT_LOGPROBS = 3  # -1: not requested
    SEED_HIGH = 4
    SEED_LOW = 5
    HAS_BIAS = 6


class Options(NamedTuple):
    """The options of some sequences, in few arrays, since each transfer of an array costs time."""

    floats: Float[HostOrDevice, "seq 6"]
    integers: Int[HostOrDevice, "seq 7"]
    stop_ids: Int[HostOrDevice, "seq stop"]  # NO_TOKEN in unused places
    bias_ids: Int[HostOrDevice, "seq bias"]  # NO_TOKEN in unused places
    biases: Float[HostOrDevice, "seq bias"]

    def float_option(self, column: FloatOption) -> Float[Array, " seq"]:
        """Return one option of all sequences."""
        return jnp.asarray(self.floats[:, column])

    def integer_option(self, column: IntegerOption) -> Int[Array, " seq"]:
        """Return one option of all sequences."""
        return jnp.asarray(self.integers[:, column])

    @property
    def seeds(self) -> UInt[Array, "seq 2"]:
        """The high and the low half of each sequence's seed."""
        halves = jnp.asarray(self.integers[:, IntegerOption.SEED_HIGH : IntegerOption.SEED_LOW + 1])
        return jax.lax.bitcast_convert_type(halves, jnp.uint32)

    @property
    def has_penalties(self) -> Bool[Array, " seq"]:
        """Whether earlier tokens change the logits of the next."""
        neutral = np.array([[1, 0, 0]], np.float32)
        return jnp.any(self.floats[:, FloatOption.REPETITION :] != neutral, axis=1)


# A sequence that takes the likeliest token and requests nothing more.
NEUTRAL_FLOATS = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
NEUTRAL_INTEGERS = (0, 0, -1, -1, 0, 0, 0)


def neutral_options(num_seqs: int) -> Options:
    """Return options, on the host, that change nothing."""
    return Options(
        floats=np.tile(np.array(NEUTRAL_FLOATS, np.float32), (num_seqs, 1)),
        integers=np.tile(np.array(NEUTRAL_INTEGERS, np.int32), (num_seqs, 1)),
        stop_ids=np.full((num_seqs, MAX_STOP_IDS), NO_TOKEN, np.int32),
        bias_ids=np.full((num_seqs, MAX_BIASED_TOKENS), NO_TOKEN, np.int32),
        biases=np.zeros((num_seqs, MAX_BIASED_TOKENS), np.float32),
    )
