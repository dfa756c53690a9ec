"""Inputs of the compiled functions: their array types, and the values of padding.

A prefill step carries the sampling options of its sequences and leaves them in their slots. Decode steps read them
there and carry none, so options cost the host no time per token. A slot's next owner overwrites them before they are
read.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from service.engine.limits import MAX_BIASED_TOKENS, MAX_STOP_IDS
from service.engine.shapes import Bucket, EngineShapes
from service.engine.token_mask import ALL_ALLOWED, WORD_BITS
from service.kernels.paging import Paging

HostOrDevice = Array | np.ndarray
OnDevice = Array | jax.ShapeDtypeStruct  # an array, or its shape when programs are lowered
NUM_SINGLE_COLUMNS = 3  # start, num_tokens, sample_slots
NO_TOKEN = np.iinfo(np.int32).max  # fills unused places; outside every vocabulary, so that scatters drop it


class StepInputs(NamedTuple):
    """The host's part of one step: a page table, and views of one array, so that two transfers send it.

    A padded sequence has no tokens.
    """

    packed: Int[Any, "seq column"]
    start: Int[Any, " seq"]  # position of each sequence's first token
    num_tokens: Int[Any, " seq"]
    sample_slots: Int[Any, " seq"]  # `num_slots` for a sequence that samples no token
    token_ids: Int[Any, "seq token"]  # a prefill's; a decode step takes each slot's last token from the device
    page_table: Int[Any, "seq page"]

    @property
    def paging(self) -> Paging:
        """The positions and pages of the tokens."""
        return Paging(self.start, self.num_tokens, self.page_table)


class SampleTargets(NamedTuple):
    """The sequences of a step that sample a token; an output of the step that stays on the device."""

    slots: Int[Any, " seq"]  # `num_slots` for a sequence that samples no token
    positions: Int[Any, " seq"]  # of the token to be sampled


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
    GROUP_FROM = 7  # the first token of a group; NO_TOKEN for no group


class Options(NamedTuple):
    """The options of some sequences, in few arrays, since each transfer of an array costs time."""

    floats: Float[HostOrDevice, "seq 6"]
    integers: Int[HostOrDevice, "seq 8"]
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


class OptionInputs(NamedTuple):
    """The host's part of a write of sampling options, which stay in the slots for the decode steps."""

    slots: Int[np.ndarray, " seq"]  # `num_slots` for padding
    options: Options


class ChooseInputs(NamedTuple):
    """Inputs of the choice of the tokens that follow a step."""

    logits: Float[OnDevice, "seq vocab"]
    targets: SampleTargets


class AdjustInputs(NamedTuple):
    """Inputs of the options that change logits."""

    logits: Float[OnDevice, "seq vocab"]
    targets: SampleTargets
    token_mask: UInt[HostOrDevice, "seq word"]  # one bit per token, the lowest first


class LogprobInputs(NamedTuple):
    """Inputs of the log-probabilities of chosen tokens."""

    logits: Float[OnDevice, "seq vocab"]  # before any option
    token_ids: Int[OnDevice | np.ndarray, " seq"]


class CountInputs(NamedTuple):
    """The host's part of counting one sequence's tokens."""

    slot: Int[np.ndarray, ""]
    token_ids: Int[np.ndarray, " position"]
    prompt_len: Int[np.ndarray, ""]
    num_tokens: Int[np.ndarray, ""]


def step_inputs(packed: Int[Any, "seq column"], page_table: Int[Any, "seq page"]) -> StepInputs:
    """Return the parts of the one array, with a page table."""
    single = (packed[:, column] for column in range(NUM_SINGLE_COLUMNS))
    return StepInputs(packed, *single, token_ids=packed[:, NUM_SINGLE_COLUMNS:], page_table=page_table)


def scalar(value: int) -> Int[np.ndarray, ""]:
    """Return an int32 scalar, as programs take one."""
    return np.array(value, np.int32)


def empty_step(bucket: Bucket, shapes: EngineShapes) -> StepInputs:
    """Return a step of padded sequences only."""
    num_columns = NUM_SINGLE_COLUMNS + (bucket.num_tokens if bucket.num_tokens > 1 else 0)
    packed, page_table = (np.zeros((bucket.num_seqs, n), np.int32) for n in (num_columns, shapes.max_pages))
    inputs = step_inputs(packed, page_table)
    inputs.sample_slots[:] = shapes.num_slots
    return inputs


# A sequence that takes the likeliest token and requests nothing more.
NEUTRAL_FLOATS = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
NEUTRAL_INTEGERS = (0, 0, -1, -1, 0, 0, 0, NO_TOKEN)


def neutral_options(num_seqs: int) -> Options:
    """Return options, on the host, that change nothing."""
    return Options(
        floats=np.tile(np.array(NEUTRAL_FLOATS, np.float32), (num_seqs, 1)),
        integers=np.tile(np.array(NEUTRAL_INTEGERS, np.int32), (num_seqs, 1)),
        stop_ids=np.full((num_seqs, MAX_STOP_IDS), NO_TOKEN, np.int32),
        bias_ids=np.full((num_seqs, MAX_BIASED_TOKENS), NO_TOKEN, np.int32),
        biases=np.zeros((num_seqs, MAX_BIASED_TOKENS), np.float32),
    )


def unrestricted_mask(num_seqs: int, vocab_size: int) -> UInt[np.ndarray, "seq word"]:
    """Return token masks that allow every token."""
    return np.full((num_seqs, -(-vocab_size // WORD_BITS)), ALL_ALLOWED, np.uint32)


def empty_options(num_seqs: int, shapes: EngineShapes) -> OptionInputs:
    """Return options of no slot."""
    return OptionInputs(np.full(num_seqs, shapes.num_slots, np.int32), neutral_options(num_seqs))


def empty_count(shapes: EngineShapes) -> CountInputs:
    """Return a count of no tokens, for no slot."""
    return CountInputs(scalar(shapes.num_slots), np.zeros(shapes.max_model_len, np.int32), scalar(0), scalar(0))
