"""How each slot is sampled, as arrays that stay on the device.

A prefill step carries the options of its rows and leaves them in their slots; decode steps find them there and carry
nothing, so the options cost the host no time for each token, and a slot's next owner overwrites them before it is read.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from service.engine.request import MAX_BIASED_TOKENS, MAX_STOP_IDS, Request, Sampling

HostOrDevice = Array | np.ndarray
NO_TOKEN = np.iinfo(np.int32).max  # fills unused places; out of every vocabulary, so that scatters drop it


class Number(IntEnum):
    """The columns of `Options.numbers`."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    PRESENCE = 4
    FREQUENCY = 5


class Integer(IntEnum):
    """The columns of `Options.integers`."""

    TOP_K = 0
    STOPS_FROM = 1  # the first position at which a stop token may come
    LOGPROBS = 2  # -1: not asked
    PROMPT_LOGPROBS = 3  # -1: not asked
    SEED_HIGH = 4
    SEED_LOW = 5
    HAS_BIAS = 6


class Options(NamedTuple):
    """The options of some rows, in few arrays, since each array costs time on its way."""

    numbers: Float[HostOrDevice, "row 6"]
    integers: Int[HostOrDevice, "row 7"]
    stop_ids: Int[HostOrDevice, "row stop"]  # unused places have NO_TOKEN
    bias_ids: Int[HostOrDevice, "row bias"]  # the same
    biases: Float[HostOrDevice, "row bias"]

    def number(self, column: Number) -> Float[Array, " row"]:
        """Return one option of all rows."""
        return jnp.asarray(self.numbers[:, column])

    def integer(self, column: Integer) -> Int[Array, " row"]:
        """Return one option of all rows."""
        return jnp.asarray(self.integers[:, column])

    @property
    def seeds(self) -> UInt[Array, "row 2"]:
        """The high and the low half of each row's seed."""
        halves = jnp.asarray(self.integers[:, Integer.SEED_HIGH : Integer.SEED_LOW + 1])
        return jax.lax.bitcast_convert_type(halves, jnp.uint32)

    @property
    def has_penalties(self) -> Bool[Array, " row"]:
        """Whether the tokens so far change the scores of the next."""
        neutral = np.array([[1, 0, 0]], np.float32)
        return jnp.any(self.numbers[:, Number.REPETITION :] != neutral, axis=1)


# One row that asks for the likeliest token and nothing else.
NEUTRAL_NUMBERS = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
NEUTRAL_INTEGERS = (0, 0, -1, -1, 0, 0, 0)


def pack_options(requests: Sequence[Request], num_rows: int) -> Options:
    """Lay out, on the host, what requests ask for, one a row; the rows after the last one are neutral."""
    numbers = np.tile(np.array(NEUTRAL_NUMBERS, np.float32), (num_rows, 1))
    integers = np.tile(np.array(NEUTRAL_INTEGERS, np.int32), (num_rows, 1))
    stop_ids = np.full((num_rows, MAX_STOP_IDS), NO_TOKEN, np.int32)
    bias_ids = np.full((num_rows, MAX_BIASED_TOKENS), NO_TOKEN, np.int32)
    biases = np.zeros((num_rows, MAX_BIASED_TOKENS), np.float32)
    for row, request in enumerate(requests):
        sampling = request.sampling
        numbers[row] = _numbers(sampling)
        integers[row] = _integers(request)
        if sampling.min_tokens:
            stop_ids[row, : len(request.stop_ids)] = sorted(request.stop_ids)
        bias_ids[row, : len(sampling.logit_bias)] = list(sampling.logit_bias)
        biases[row, : len(sampling.logit_bias)] = list(sampling.logit_bias.values())
    return Options(numbers, integers, stop_ids, bias_ids, biases)


def _numbers(sampling: Sampling) -> tuple[float, ...]:
    return (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )


def _integers(request: Request) -> tuple[int, ...]:
    sampling = request.sampling
    seed_halves = np.array(divmod(sampling.seed, 1 << 32), np.uint32).view(np.int32)
    return (
        sampling.top_k,
        len(request.prompt_ids) + sampling.min_tokens if sampling.min_tokens else 0,
        -1 if sampling.num_logprobs is None else sampling.num_logprobs,
        -1 if request.num_prompt_logprobs is None else request.num_prompt_logprobs,
        *seed_halves.tolist(),
        bool(sampling.logit_bias),
    )
