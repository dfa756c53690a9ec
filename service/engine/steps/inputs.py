"""Inputs of the compiled functions: their array types, and the values of padding."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from service.engine.shapes import Bucket, EngineShapes, StepKind
from service.engine.steps.options import Options, neutral_options
from service.engine.token_mask import ALL_ALLOWED, WORD_BITS
from service.kernels.paging import Paging

OnDevice = Array | jax.ShapeDtypeStruct  # an array, or its shape when programs are lowered
NUM_SINGLE_COLUMNS = 4  # start, num_tokens, slots, sample_slots


class StepInputs(NamedTuple):
    """The host's part of one step: views of one array, so that a single transfer sends it.

    A padded sequence has no tokens, and `num_slots` as its slot.
    """

    packed: Int[Any, "seq column"]
    start: Int[Any, " seq"]  # position of each sequence's first token
    num_tokens: Int[Any, " seq"]
    slots: Int[Any, " seq"]
    sample_slots: Int[Any, " seq"]  # `num_slots` for a sequence that samples no token
    page_table: Int[Any, "seq page"]
    token_ids: Int[Any, "seq token"]  # a prefill's; a decode step takes each slot's last token from the device

    @property
    def paging(self) -> Paging:
        """The positions and pages of the tokens."""
        return Paging(self.start, self.num_tokens, self.page_table, self.slots)


class LastHiddenInputs(NamedTuple):
    """Inputs of `last_hidden`, which follows a prefill step."""

    hidden: Float[OnDevice, "seq token hidden"]
    num_tokens: Int[OnDevice, " seq"]


class SampleTargets(NamedTuple):
    """The sequences of a step that sample a token; an output of the step that stays on the device."""

    slots: Int[Any, " seq"]  # `num_slots` for a sequence that samples no token
    positions: Int[Any, " seq"]  # of the token to be sampled


class SampleInputs(NamedTuple):
    """Inputs of the sampling that follows a step."""

    hidden: Float[OnDevice, "seq 1 hidden"]  # of each sequence's last token
    targets: SampleTargets
    token_mask: UInt[Array | np.ndarray, "seq word"]  # one bit per token, the lowest first
    options: Options | None  # of each sequence of a prefill; they stay in its slot for the decode steps


class PromptLogprobInputs(NamedTuple):
    """Inputs of a prompt's log-probabilities, which follow a prefill step."""

    hidden: Float[OnDevice, "seq token hidden"]
    target_ids: Int[np.ndarray, "seq token"]  # the token after each position


class CopyInputs(NamedTuple):
    """The host's part of one copy between a slot and its pages."""

    slot: Int[np.ndarray, ""]
    first_page: Int[np.ndarray, ""]  # in the order of positions
    pages: Int[np.ndarray, " page"]  # `num_pages` is padding


class CountInputs(NamedTuple):
    """The host's part of counting one sequence's tokens."""

    slot: Int[np.ndarray, ""]
    token_ids: Int[np.ndarray, " position"]
    prompt_len: Int[np.ndarray, ""]
    num_tokens: Int[np.ndarray, ""]


def step_inputs(packed: Int[Any, "seq column"], bucket: Bucket) -> StepInputs:
    """Return the parts of the one array, whose width is that of the bucket."""
    single = (packed[:, column] for column in range(NUM_SINGLE_COLUMNS))
    last_page = NUM_SINGLE_COLUMNS + bucket.num_pages
    page_table, token_ids = packed[:, NUM_SINGLE_COLUMNS:last_page], packed[:, last_page:]
    return StepInputs(packed, *single, page_table=page_table, token_ids=token_ids)


def scalar(value: int) -> Int[np.ndarray, ""]:
    """Return an int32 scalar, as programs take one."""
    return np.array(value, np.int32)


def empty_step(bucket: Bucket, shapes: EngineShapes) -> StepInputs:
    """Return a step of padded sequences only."""
    num_columns = NUM_SINGLE_COLUMNS + bucket.num_pages + (bucket.num_tokens if bucket.num_tokens > 1 else 0)
    inputs = step_inputs(np.zeros((bucket.num_seqs, num_columns), np.int32), bucket)
    inputs.slots[:] = inputs.sample_slots[:] = shapes.num_slots
    return inputs


def unrestricted_mask(num_seqs: int, vocab_size: int) -> UInt[np.ndarray, "seq word"]:
    """Return token masks that allow every token."""
    return np.full((num_seqs, -(-vocab_size // WORD_BITS)), ALL_ALLOWED, np.uint32)


def empty_sample(
    kind: StepKind,
    hidden: Float[OnDevice, "seq 1 hidden"],
    targets: SampleTargets,
    token_mask: UInt[Array | np.ndarray, "seq word"],
) -> SampleInputs:
    """Return a sampling whose sequences set no option."""
    options = neutral_options(hidden.shape[0]) if kind is StepKind.PREFILL else None
    return SampleInputs(hidden, targets, token_mask, options)


def empty_prompt(hidden: Float[OnDevice, "seq token hidden"]) -> PromptLogprobInputs:
    """Return the log-probabilities' inputs with token 0 after every position."""
    return PromptLogprobInputs(hidden, np.zeros(hidden.shape[:2], np.int32))


def empty_copy(num_pages: int, shapes: EngineShapes) -> CopyInputs:
    """Return a copy of padding."""
    return CopyInputs(scalar(0), scalar(0), np.full(num_pages, shapes.num_pages, np.int32))


def empty_count(shapes: EngineShapes) -> CountInputs:
    """Return a count of no tokens, for no slot."""
    return CountInputs(scalar(shapes.num_slots), np.zeros(shapes.max_context, np.int32), scalar(0), scalar(0))
