"""A plan as the padded arrays of one bucket."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int, UInt

from service.compile.buckets import Bucket
from service.engine.options import ALL_ALLOWED, WORD_BITS, Options, pack_options
from service.engine.plan import PageCopy, Plan, StepKind
from service.engine.shapes import EngineShapes


class PrefillInputs(NamedTuple):
    """What only a prefill step needs."""

    options: Options  # of each row; they stay in its slot for the decode steps
    target_ids: Int[np.ndarray, "seq token"]  # the token after each one, for the prompt's log-probabilities


class StepInputs(NamedTuple):
    """What the host sends for one step. A padded row has no tokens and the slot `num_slots`, which is no slot."""

    token_ids: Int[np.ndarray, "seq token"]  # a prefill's; a decode takes each slot's last token from the device
    start: Int[np.ndarray, " seq"]  # position of each row's first token
    num_tokens: Int[np.ndarray, " seq"]
    page_table: Int[np.ndarray, "seq page"]
    slots: Int[np.ndarray, " seq"]
    allowed_words: UInt[Array | np.ndarray, "seq word"]  # one bit a token, the lowest first: which may come
    prefill: PrefillInputs | None


class CopyInputs(NamedTuple):
    """What the host sends for one copy between a slot's row and its pages."""

    slot: Int[np.ndarray, ""]
    first_page: Int[np.ndarray, ""]  # in the order of positions
    pages: Int[np.ndarray, " page"]  # an id of `num_pages` is no page


def pack_copy(copy: PageCopy, shapes: EngineShapes) -> Iterator[CopyInputs]:
    """Cut a copy into those sizes that were compiled."""
    done = 0
    while done < len(copy.pages):
        left = len(copy.pages) - done
        size = next((size for size in shapes.copy_sizes if size >= left), shapes.copy_sizes[-1])
        pages = np.full(size, shapes.num_pages, np.int32)
        pages[: min(left, size)] = copy.pages[done : done + size]
        yield CopyInputs(np.array(copy.slot, np.int32), np.array(copy.first_page + done, np.int32), pages)
        done += size


def all_allowed(num_seqs: int, vocab_size: int) -> UInt[np.ndarray, "seq word"]:
    """Return words that allow every token."""
    return np.full((num_seqs, -(-vocab_size // WORD_BITS)), ALL_ALLOWED, np.uint32)


def empty_inputs(
    kind: StepKind, bucket: Bucket, shapes: EngineShapes, allowed_words: UInt[Array | np.ndarray, "seq word"]
) -> StepInputs:
    """Return a bucket's arrays with padding in every row."""
    num_seqs = bucket["num_seqs"]
    is_prefill = kind is StepKind.PREFILL
    return StepInputs(
        token_ids=_no_tokens(bucket),
        start=np.zeros(num_seqs, np.int32),
        num_tokens=np.zeros(num_seqs, np.int32),
        page_table=np.zeros((num_seqs, bucket["num_pages"]), np.int32),
        slots=np.full(num_seqs, shapes.num_slots, np.int32),
        allowed_words=allowed_words,
        prefill=PrefillInputs(pack_options((), num_seqs), _no_tokens(bucket)) if is_prefill else None,
    )


def _no_tokens(bucket: Bucket) -> Int[np.ndarray, "seq token"]:
    return np.zeros((bucket["num_seqs"], bucket["num_tokens"]), np.int32)


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


def pack(plan: Plan, bucket: Bucket, shapes: EngineShapes, everything_allowed: UInt[Array, "seq word"]) -> StepInputs:
    """Lay a plan out in the arrays of a bucket.

    Args:
        plan: who runs.
        bucket: the shape.
        shapes: the engine's.
        everything_allowed: what to send while no row restricts its tokens; it lies on the device already.
    """
    indices = row_indices(plan)
    inputs = empty_inputs(plan.kind, bucket, shapes, _allowed_words(plan, indices, everything_allowed))
    for index, row in zip(indices, plan.rows, strict=True):
        inputs.token_ids[index, : len(row.token_ids)] = row.token_ids
        inputs.start[index] = row.start
        inputs.num_tokens[index] = row.num_tokens
        # A sequence owns its pages to the end; this step reads only as far as it has come.
        pages = row.sequence.pages[: bucket["num_pages"]]
        inputs.page_table[index, : len(pages)] = pages
        inputs.slots[index] = row.slot
    if plan.kind is StepKind.PREFILL:
        return inputs._replace(prefill=_pack_prefill(plan, bucket))
    return inputs


def _pack_prefill(plan: Plan, bucket: Bucket) -> PrefillInputs:
    target_ids = _no_tokens(bucket)
    for index, row in enumerate(plan.rows):
        end = row.start + len(row.token_ids)
        targets = row.sequence.request.prompt_ids[row.start + 1 : end + 1]
        target_ids[index, : len(targets)] = targets
    return PrefillInputs(pack_options([row.sequence.request for row in plan.rows], bucket["num_seqs"]), target_ids)


def _allowed_words(
    plan: Plan, indices: list[int], everything_allowed: UInt[Array, "seq word"]
) -> UInt[Array | np.ndarray, "seq word"]:
    if all(row.sequence.allowed_words is None for row in plan.rows):
        return everything_allowed
    words = np.full(everything_allowed.shape, ALL_ALLOWED, np.uint32)
    for index, row in zip(indices, plan.rows, strict=True):
        if row.sequence.allowed_words is not None:
            words[index] = row.sequence.allowed_words
    return words
