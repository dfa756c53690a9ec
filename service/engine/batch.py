"""A plan as the padded arrays of one bucket."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt

from service.compile.buckets import Bucket
from service.engine.plan import PageCopy, Plan, StepKind
from service.engine.shapes import EngineShapes


class StepInputs(NamedTuple):
    """What the host sends for one step. A padded row has no tokens and the slot `num_slots`, which is no slot."""

    token_ids: Int[np.ndarray, "seq token"]  # a prefill's; a decode takes each slot's last token from the device
    start: Int[np.ndarray, " seq"]  # position of each row's first token
    num_tokens: Int[np.ndarray, " seq"]
    page_table: Int[np.ndarray, "seq page"]
    slots: Int[np.ndarray, " seq"]
    temperature: Float[np.ndarray, " seq"]
    top_p: Float[np.ndarray, " seq"]
    seeds: UInt[np.ndarray, "seq 2"]  # high and low half of each row's seed


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
        yield CopyInputs(np.int32(copy.slot), np.int32(copy.first_page + done), pages)
        done += size


def empty_inputs(bucket: Bucket, shapes: EngineShapes) -> StepInputs:
    """Return a bucket's arrays with padding in every row."""
    num_seqs = bucket["num_seqs"]
    return StepInputs(
        token_ids=np.zeros((num_seqs, bucket["num_tokens"]), np.int32),
        start=np.zeros(num_seqs, np.int32),
        num_tokens=np.zeros(num_seqs, np.int32),
        page_table=np.zeros((num_seqs, bucket["num_pages"]), np.int32),
        slots=np.full(num_seqs, shapes.num_slots, np.int32),
        temperature=np.zeros(num_seqs, np.float32),
        top_p=np.ones(num_seqs, np.float32),
        seeds=np.zeros((num_seqs, 2), np.uint32),
    )


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
        sampling = row.sequence.request.sampling
        inputs.token_ids[index, : len(row.token_ids)] = row.token_ids
        inputs.start[index] = row.start
        inputs.num_tokens[index] = row.num_tokens
        # A sequence owns its pages to the end; this step reads only as far as it has come.
        pages = row.sequence.pages[: bucket["num_pages"]]
        inputs.page_table[index, : len(pages)] = pages
        inputs.slots[index] = row.slot
        inputs.temperature[index] = sampling.temperature
        inputs.top_p[index] = sampling.top_p
        inputs.seeds[index] = divmod(sampling.seed, 1 << 32)
    return inputs
