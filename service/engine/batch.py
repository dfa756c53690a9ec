"""A plan as the padded arrays of one bucket."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt

from service.compile.buckets import Bucket
from service.engine.scheduler import Plan, StepKind
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
        num_tokens=max(max(len(row.token_ids), 1) for row in plan.rows),
        num_pages=max(shapes.pages_for(row.start + max(len(row.token_ids), 1)) for row in plan.rows),
    )


def row_indices(plan: Plan) -> list[int]:
    """Return where each row of a plan lies in the arrays: in a decode at its slot, in a prefill one after the other."""
    if plan.kind is StepKind.DECODE:
        return [row.sequence.slot for row in plan.rows]
    return list(range(len(plan.rows)))


def pack(plan: Plan, bucket: Bucket, shapes: EngineShapes) -> StepInputs:
    """Lay a plan out in the arrays of a bucket."""
    inputs = empty_inputs(bucket, shapes)
    for index, row in zip(row_indices(plan), plan.rows, strict=True):
        sampling = row.sequence.request.sampling
        inputs.token_ids[index, : len(row.token_ids)] = row.token_ids
        inputs.start[index] = row.start
        inputs.num_tokens[index] = max(len(row.token_ids), 1)
        # A sequence owns its pages to the end; this step reads only as far as it has come.
        pages = row.sequence.pages[: bucket["num_pages"]]
        inputs.page_table[index, : len(pages)] = pages
        inputs.slots[index] = row.sequence.slot
        inputs.temperature[index] = sampling.temperature
        inputs.top_p[index] = sampling.top_p
        inputs.seeds[index] = divmod(sampling.seed, 1 << 32)
    return inputs
