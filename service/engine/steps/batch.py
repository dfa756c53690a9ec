"""A plan as the padded arrays of one bucket."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from service.compile.buckets import Bucket
from service.engine.schedule.plan import PageCopy, Plan, PlannedRow, StepKind
from service.engine.shapes import EngineShapes
from service.engine.steps.options import Options, pack_options
from service.engine.token_mask import ALL_ALLOWED, WORD_BITS
from service.kernels.paging import Paging

OnDevice = Array | jax.ShapeDtypeStruct  # an array, or its shape for who compiles


class StepInputs(NamedTuple):
    """What the host knows of one step: views of one array, so that it is sent at once.

    A padded row has no tokens and the slot `num_slots`, which is no slot.
    """

    packed: Int[Any, "seq column"]
    start: Int[Any, " seq"]  # position of each row's first token
    num_tokens: Int[Any, " seq"]
    slots: Int[Any, " seq"]
    drawing_slots: Int[Any, " seq"]  # `num_slots` for a row that draws nothing
    page_table: Int[Any, "seq page"]
    token_ids: Int[Any, "seq token"]  # a prefill's; a decode takes each slot's last token from the device

    @property
    def paging(self) -> Paging:
        """Where the tokens lie."""
        return Paging(self.start, self.num_tokens, self.page_table, self.slots)


NUM_SINGLE_COLUMNS = 4  # start, num_tokens, slots, drawing_slots


def step_inputs(packed: Int[Any, "seq column"], bucket: Bucket) -> StepInputs:
    """Return the parts of the one array, whose width is that of the bucket."""
    single = (packed[:, column] for column in range(NUM_SINGLE_COLUMNS))
    last_page = NUM_SINGLE_COLUMNS + bucket["num_pages"]
    page_table, token_ids = packed[:, NUM_SINGLE_COLUMNS:last_page], packed[:, last_page:]
    return StepInputs(packed, *single, page_table=page_table, token_ids=token_ids)


class LastInputs(NamedTuple):
    """What picking the hidden states of the rows' last tokens takes, after a prefill step."""

    hidden: Float[OnDevice, "seq token hidden"]
    num_tokens: Int[OnDevice, " seq"]


class Drawing(NamedTuple):
    """Which rows of a step draw a token, and where it belongs; comes from the step and is on the device."""

    slots: Int[Any, " seq"]  # `num_slots` for a row that draws nothing
    positions: Int[Any, " seq"]  # of the token to be drawn


class SampleInputs(NamedTuple):
    """What the draw after a step takes."""

    hidden: Float[OnDevice, "seq 1 hidden"]  # of each row's last token
    drawing: Drawing
    allowed_words: UInt[Array | np.ndarray, "seq word"]  # one bit a token, the lowest first: which may come
    options: Options | None  # of each row after its prefill; they stay in its slot for the decode steps


class PromptInputs(NamedTuple):
    """What scoring a prompt takes, after a prefill step."""

    hidden: Float[OnDevice, "seq token hidden"]
    target_ids: Int[np.ndarray, "seq token"]  # the token after each one


class CopyInputs(NamedTuple):
    """What the host sends for one copy between a slot's row and its pages."""

    slot: Int[np.ndarray, ""]
    first_page: Int[np.ndarray, ""]  # in the order of positions
    pages: Int[np.ndarray, " page"]  # an id of `num_pages` is no page


class CountInputs(NamedTuple):
    """What the host sends for counting one sequence's tokens."""

    slot: Int[np.ndarray, ""]
    token_ids: Int[np.ndarray, " position"]
    prompt_len: Int[np.ndarray, ""]
    num_tokens: Int[np.ndarray, ""]


def empty_copy(num_pages: int, shapes: EngineShapes) -> CopyInputs:
    """Return the arrays of a copy of no page."""
    return CopyInputs(_number(0), _number(0), np.full(num_pages, shapes.num_pages, np.int32))


def pack_copy(copy: PageCopy, shapes: EngineShapes) -> Iterator[CopyInputs]:
    """Cut a copy into those sizes that were compiled."""
    done = 0
    while done < len(copy.pages):
        left = len(copy.pages) - done
        size = next((size for size in shapes.copy_sizes if size >= left), shapes.copy_sizes[-1])
        pages = empty_copy(size, shapes).pages
        pages[: min(left, size)] = copy.pages[done : done + size]
        yield CopyInputs(_number(copy.slot), _number(copy.first_page + done), pages)
        done += size


def empty_count(shapes: EngineShapes) -> CountInputs:
    """Return the arrays for counting nobody's tokens."""
    return CountInputs(_number(shapes.num_slots), np.zeros(shapes.max_context, np.int32), _number(0), _number(0))


def pack_count(row: PlannedRow, shapes: EngineShapes) -> CountInputs:
    """Lay out the tokens of a sequence up to the end of its row."""
    token_ids = row.sequence.known_ids[: row.start + row.num_tokens]
    padded = empty_count(shapes).token_ids
    padded[: len(token_ids)] = token_ids
    return CountInputs(_number(row.slot), padded, _number(row.sequence.prompt_len), _number(len(token_ids)))


def _number(value: int) -> Int[np.ndarray, ""]:
    return np.array(value, np.int32)


def all_allowed(num_seqs: int, vocab_size: int) -> UInt[np.ndarray, "seq word"]:
    """Return words that allow every token."""
    return np.full((num_seqs, -(-vocab_size // WORD_BITS)), ALL_ALLOWED, np.uint32)


def empty_inputs(bucket: Bucket, shapes: EngineShapes) -> StepInputs:
    """Return a step's arrays with padding in every row."""
    num_tokens = bucket["num_tokens"]
    num_columns = NUM_SINGLE_COLUMNS + bucket["num_pages"] + (num_tokens if num_tokens > 1 else 0)
    inputs = step_inputs(np.zeros((bucket["num_seqs"], num_columns), np.int32), bucket)
    inputs.slots[:] = inputs.drawing_slots[:] = shapes.num_slots
    return inputs


def empty_sample_inputs(
    kind: StepKind,
    hidden: Float[OnDevice, "seq 1 hidden"],
    drawing: Drawing,
    everything_allowed: UInt[Array | np.ndarray, "seq word"],
) -> SampleInputs:
    """Return the arrays of a draw of which nobody asks anything."""
    options = pack_options((), hidden.shape[0]) if kind is StepKind.PREFILL else None
    return SampleInputs(hidden, drawing, everything_allowed, options)


def empty_prompt_inputs(hidden: Float[OnDevice, "seq token hidden"]) -> PromptInputs:
    """Return the arrays for scoring no prompt."""
    return PromptInputs(hidden, np.zeros(hidden.shape[:2], np.int32))


def choose_bucket(plan: Plan, shapes: EngineShapes) -> Bucket:
    """Return the smallest compiled shape that holds a plan."""
    grid = shapes.prefill_grid if plan.kind is StepKind.PREFILL else shapes.decode_grid
    return grid.smallest(
        num_seqs=max(row_indices(plan)) + 1,
        num_tokens=max(row.num_tokens for row in plan.rows),
        num_pages=max(shapes.pages_for(row.start + row.num_tokens) for row in plan.rows),
    )


def row_indices(plan: Plan) -> list[int]:
    """Return where each row of a plan lies in the arrays: in a decode at its slot, in a prefill one after the other."""
    if plan.kind is StepKind.DECODE:
        return [row.slot for row in plan.rows]
    return list(range(len(plan.rows)))


def pack(plan: Plan, bucket: Bucket, shapes: EngineShapes) -> StepInputs:
    """Lay a plan out in the arrays of a bucket."""
    inputs = empty_inputs(bucket, shapes)
    for index, row in zip(row_indices(plan), plan.rows, strict=True):
        if plan.kind is StepKind.PREFILL:
            inputs.token_ids[index, : len(row.token_ids)] = row.token_ids
        inputs.start[index] = row.start
        inputs.num_tokens[index] = row.num_tokens
        # A sequence owns its pages to the end; this step reads only as far as it has come.
        pages = row.sequence.pages[: bucket["num_pages"]]
        inputs.page_table[index, : len(pages)] = pages
        inputs.slots[index] = row.slot
        if row.is_sampled:
            inputs.drawing_slots[index] = row.slot
    return inputs


def pack_sampling(
    plan: Plan,
    hidden: Float[OnDevice, "seq 1 hidden"],
    drawing: Drawing,
    everything_allowed: UInt[Array, "seq word"],
) -> SampleInputs:
    """Lay out what the rows of a plan ask of their next token.

    Args:
        plan: who runs.
        hidden: of each row's last token, from the step.
        drawing: from the step, too.
        everything_allowed: what to send while no row restricts its tokens; it lies on the device already.
    """
    options = None
    if plan.kind is StepKind.PREFILL:
        options = pack_options([row.sequence.request for row in plan.rows], hidden.shape[0])
    return SampleInputs(hidden, drawing, _allowed_words(plan, everything_allowed), options)


def pack_prompt(plan: Plan, hidden: Float[OnDevice, "seq token hidden"]) -> PromptInputs:
    """Lay out the token after each one of a prefill's chunks."""
    inputs = empty_prompt_inputs(hidden)
    for index, row in enumerate(plan.rows):
        targets = row.sequence.request.prompt_ids[row.start + 1 : row.start + len(row.token_ids) + 1]
        inputs.target_ids[index, : len(targets)] = targets
    return inputs


def _allowed_words(plan: Plan, everything_allowed: UInt[Array, "seq word"]) -> UInt[Array | np.ndarray, "seq word"]:
    if all(row.sequence.allowed_words is None for row in plan.rows):
        return everything_allowed
    words = np.full(everything_allowed.shape, ALL_ALLOWED, np.uint32)
    for index, row in zip(row_indices(plan), plan.rows, strict=True):
        if (own := row.sequence.allowed_words) is not None:
            words[index] = 0
            words[index, : len(own)] = own
    return words
