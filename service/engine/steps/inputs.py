"""Inputs of the compiled functions: their array types, and the values of padding.

A step in which prompts end carries the sampling options of their sequences and leaves them in their slots, where later
steps read them, so options cost the host no time per token. A slot's next owner overwrites them before they are read.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from service.engine.limits import MAX_BIASED_TOKENS, MAX_STOP_IDS
from service.engine.shapes import Bucket, EngineShapes, RowShapes
from service.engine.token_mask import ALL_ALLOWED, WORD_BITS
from service.kernels.paging import ZERO_STATE, Paging, Regions

HostOrDevice = Array | np.ndarray
OnDevice = Array | jax.ShapeDtypeStruct  # an array, or its shape when programs are lowered
NO_ADAPTER = -1  # in place of the slot of an adapter
NOT_SAMPLED = -1  # in place of the position of a token to be sampled
NOT_MEDIA = -1  # in place of a row of a medium, for a token
NO_TOKEN = np.iinfo(np.int32).max  # fills unused places; outside every vocabulary, so that scatters drop it


class EmbedInputs(NamedTuple):
    """The host's part of one step, as its first program takes it, and the rows of all media."""

    packed: Int[Any, " number"]
    page_table: Int[Any, "slot_and_row page"]
    memory_table: Int[Any, "slot_and_row memory_page"] | None = None  # of a model that attends to an encoder
    positions: Int[Any, "3 slot_and_token"] | None = None  # by time, row and column, of a model that has these
    media_rows: Int[Any, "row token"] | None = None  # that take the places of tokens, or NOT_MEDIA; None if none do
    media_ahead: Int[Any, "row token"] | None = None  # as that of `StepInputs`
    rows: Float[Any, "place row level hidden"] | None = None  # of all media; None if no token's place is taken
    windows: dict[int, Int[Any, "slot_and_row base_and_page"]] | None = None  # as those of `StepInputs`
    states: Int[Any, "part slot_and_row"] | None = None  # as those of `StepInputs`


class StepInputs(NamedTuple):
    """The host's part of one step: page tables, and views of one array, so that two transfers send it.

    A slot that does not decode, and a row without a part of a prompt, has no tokens.
    """

    packed: Int[Any, " number"]
    starts: Int[Any, " slot"]  # position of the token of each slot that decodes
    num_tokens: Int[Any, " slot"]  # 1 for a slot that decodes
    # Of each slot, or of each token that a step samples which verifies drafts; see `Drafted`.
    sampled: Int[Any, " slot"]  # position of the token to be sampled; NOT_SAMPLED for none
    places: Int[Any, " slot"]  # of the token before that one, among the tokens of the step
    row_starts: Int[Any, " row"]  # position of the first token of each row
    row_tokens: Int[Any, " row"]
    token_ids: Int[Any, "row token"]  # of prompts; a slot that decodes takes its last token from the device
    page_table: Int[Any, "slot_and_row page"]
    memory_table: Int[Any, "slot_and_row memory_page"] | None = None  # of a model that attends to an encoder
    media_rows: Int[Any, "row token"] | None = None  # that take the places of tokens, or NOT_MEDIA; None if none do
    media_ahead: Int[Any, "row token"] | None = None  # rows of the same medium behind each, if they see each other
    positions: Int[Any, "3 slot_and_token"] | None = None  # by time, row and column, of a model that has these
    # The slots of the adapters of slots and rows; NO_ADAPTER for none. None of an engine without any.
    adapters: Int[Any, " slot"] | None = None
    row_adapters: Int[Any, " row"] | None = None
    # By window, of layers whose pages are apart: the position at which a table begins, and its pages. None without any.
    windows: dict[int, Int[Any, "slot_and_row base_and_page"]] | None = None
    # The slots of states, as `StateSlots` has them; without its third part if nothing is drafted. None without states.
    states: Int[Any, "part slot_and_row"] | None = None

    def token_adapters(self) -> Int[Array, " token"] | None:
        """Return the slot of each token's adapter; of padding, NO_ADAPTER."""
        if self.adapters is None or self.row_adapters is None:
            return None
        width = self.token_ids.shape[1]
        is_token = jnp.arange(width, dtype=jnp.int32)[None] < self.row_tokens[:, None]
        of_rows = jnp.where(is_token, self.row_adapters[:, None], NO_ADAPTER)
        return jnp.concatenate([self.adapters, of_rows.reshape(-1)])

    def to_embed(self, rows: Float[Any, "place row level hidden"] | None = None) -> EmbedInputs:
        """Return what the step's first program takes, with the rows of all media if some take the places of tokens."""
        tables = (self.packed, self.page_table, self.memory_table)
        media = (self.media_rows, self.media_ahead, rows)
        return EmbedInputs(*tables, self.positions, *media, self.windows, self.states)

    @property
    def regions(self) -> Regions:
        """The positions and pages of the tokens."""
        num_slots = len(self.starts)
        regions = Regions(
            Paging(self.starts, self.num_tokens, self.page_table[:num_slots]),
            Paging(self.row_starts, self.row_tokens, self.page_table[num_slots:]),
        )
        return regions if self.states is None else regions.with_states(self.states)


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
    SCORES = 8  # whether log-probabilities are those after all options


class Options(NamedTuple):
    """The options of some sequences, in few arrays, since each transfer of an array costs time."""

    floats: Float[HostOrDevice, "seq 6"]
    integers: Int[HostOrDevice, "seq 9"]
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

    slots: Int[np.ndarray, " seq"]  # `num_samples` for padding
    options: Options


class Drafted(NamedTuple):
    """What a step that verifies drafts samples: of each sequence one token after each of its tokens in the step.

        tokens of a sequence    last token    draft 1     draft 2
        sampled                 a             b           c
        drafted                 draft 1       draft 2     NO_TOKEN

    The sequence goes on with `a`; with `b` if `a` is draft 1; with `c` if `b` is draft 2, too.
    """

    slots: Int[HostOrDevice, " sample"]  # of each token's sequence; any for padding
    token_ids: Int[HostOrDevice, " sample"]  # drafted in its place; NO_TOKEN after a last draft


class SampleInputs(NamedTuple):
    """Inputs of the sampling that follows a step: of each slot one token, unless the step verifies drafts."""

    hidden: Float[OnDevice, "slot hidden"]  # of the token before the one to be sampled
    positions: Int[OnDevice, " slot"]  # of the token to be sampled; NOT_SAMPLED for none
    # Of the general sampler: one bit per token, the lowest first. None for the others.
    token_mask: UInt[HostOrDevice, "slot word"] | None = None
    drafted: Drafted | None = None  # of a step that verifies drafts


class AdapterInputs(NamedTuple):
    """The host's part of a write of an adapter into its slot, for a layer group."""

    slot: Int[np.ndarray, ""]
    arrays: tuple[Float[np.ndarray | jax.ShapeDtypeStruct, "..."], ...]  # in the order of `LayerGroup.adapters`


class PromptInputs(NamedTuple):
    """Some positions of a prompt, whose next tokens' log-probabilities are wanted."""

    hidden: Float[np.ndarray | jax.ShapeDtypeStruct, "position hidden"]
    token_ids: Int[np.ndarray | jax.ShapeDtypeStruct, " position"]  # the next ones


class CountInputs(NamedTuple):
    """The host's part of counting one sequence's tokens."""

    slot: Int[np.ndarray, ""]
    token_ids: Int[np.ndarray, " position"]
    prompt_len: Int[np.ndarray, ""]
    num_tokens: Int[np.ndarray, ""]


def step_inputs(
    packed: Int[Any, " number"], page_table: Int[Any, "slot_and_row page"], bucket: Bucket, *, has_adapters: bool
) -> StepInputs:
    """Return the parts of the one array, with the page tables."""
    num_slots, num_rows = bucket
    num_adapters = num_slots + num_rows if has_adapters else 0
    end = len(packed) - num_adapters
    first_row = 4 * num_slots
    of_slots = [packed[index * num_slots : (index + 1) * num_slots] for index in range(4)]
    of_rows = [packed[first_row + index * num_rows : first_row + (index + 1) * num_rows] for index in range(2)]
    token_ids = packed[first_row + 2 * num_rows : end].reshape(num_rows, -1 if num_rows else 0)
    return StepInputs(
        *(packed, *of_slots, *of_rows),
        token_ids=token_ids,
        page_table=page_table,
        adapters=packed[end : end + num_slots] if has_adapters else None,
        row_adapters=packed[end + num_slots :] if has_adapters else None,
    )


def in_windows(
    regions: Regions, tables: dict[int, Int[Any, "slot_and_row base_and_page"]] | None
) -> dict[int, Regions] | None:
    """Return the tokens of a step in the pages of each window; None for a model without pages apart."""
    return None if tables is None else {window: regions.in_window(table) for window, table in tables.items()}


def scalar(value: int) -> Int[np.ndarray, ""]:
    """Return an int32 scalar, as programs take one."""
    return np.array(value, np.int32)


def empty_step(bucket: Bucket, shapes: EngineShapes) -> StepInputs:
    """Return a step without tokens."""
    num_slots, num_rows = bucket
    has_adapters = shapes.adapters is not None
    num_adapters = num_slots + num_rows if has_adapters else 0
    packed = np.zeros(4 * num_slots + num_rows * (2 + shapes.row_tokens) + num_adapters, np.int32)
    page_table = np.zeros((num_slots + num_rows, shapes.max_pages), np.int32)
    inputs = step_inputs(packed, page_table, bucket, has_adapters=has_adapters)
    inputs.sampled[:] = NOT_SAMPLED
    packed[len(packed) - num_adapters :] = NO_ADAPTER
    if shapes.windows:
        num_tables = num_slots + num_rows
        windows = {w.window: np.zeros((num_tables, 1 + w.table_pages), np.int32) for w in shapes.windows}
        inputs = inputs._replace(windows=windows)
    if shapes.states is not None:
        states = np.zeros((3 if shapes.num_drafts else 2, num_slots + num_rows), np.int32)
        states[0], states[1] = ZERO_STATE, shapes.states.num_states  # which writes nothing
        inputs = inputs._replace(states=states)
    if shapes.media is not None and shapes.media.has_grid:
        inputs = inputs._replace(positions=np.zeros((3, shapes.padding(bucket)), np.int32))
    if shapes.memory is None:
        return inputs
    return inputs._replace(memory_table=np.zeros((num_slots + num_rows, shapes.memory_pages), np.int32))


def no_drafts(count: int) -> Drafted:
    """Return the drafts of no sequence."""
    return Drafted(np.zeros(count, np.int32), np.full(count, NO_TOKEN, np.int32))


def with_media(inputs: StepInputs, media: RowShapes) -> StepInputs:
    """Return a step in which rows of media may take the places of tokens, and take none yet."""
    numbers = np.full(inputs.token_ids.shape, NOT_MEDIA, np.int32)
    return inputs._replace(media_rows=numbers, media_ahead=np.zeros_like(numbers) if media.is_whole else None)


# A sequence that takes the likeliest token and requests nothing more.
NEUTRAL_FLOATS = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
NEUTRAL_INTEGERS = (0, 0, -1, -1, 0, 0, 0, NO_TOKEN, 0)


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
    return OptionInputs(np.full(num_seqs, shapes.num_samples, np.int32), neutral_options(num_seqs))


def empty_count(shapes: EngineShapes) -> CountInputs:
    """Return a count of no tokens, for no slot."""
    return CountInputs(scalar(shapes.num_samples), np.zeros(shapes.max_model_len, np.int32), scalar(0), scalar(0))
