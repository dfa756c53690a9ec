"""The compiled function: decode, gather, sample. A prefill step and a decode step differ in their shapes only.

Each slot's last token stays on the device, so that the next step can be dispatched before this one is read.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from service.compile.buckets import Bucket
from service.engine.batch import CopyInputs, StepInputs, empty_inputs
from service.engine.plan import StepKind
from service.engine.sampler import sample
from service.engine.shapes import EngineShapes
from service.kernels.paging import Paging
from service.models.interface import Cache, PagedDecoder, StepBatch, Weights


class DeviceState(NamedTuple):
    """What lives on the device between steps; donated to each."""

    cache: Cache
    last_token_ids: Int[Array, " slot"]  # the token that each slot's next decode step starts from


def initial_state(model: PagedDecoder, shapes: EngineShapes) -> DeviceState:
    """Return the device state before the first step."""
    return DeviceState(model.initial_cache(shapes.layout), jnp.zeros(shapes.num_slots, jnp.int32))


def input_shapes(bucket: Bucket, shapes: EngineShapes) -> StepInputs:
    """Return a bucket's inputs as shapes."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), empty_inputs(bucket, shapes))


def save_pages(model: PagedDecoder, state: DeviceState, copy: CopyInputs) -> DeviceState:
    """Copy neighbouring pages out of a slot's row, for others to find."""
    return state._replace(cache=model.save_pages(state.cache, *jax.tree.map(jnp.asarray, copy)))


def restore_pages(model: PagedDecoder, state: DeviceState, copy: CopyInputs) -> DeviceState:
    """Copy pages that were found into a slot's row."""
    return state._replace(cache=model.restore_pages(state.cache, *jax.tree.map(jnp.asarray, copy)))


def run_step(
    model: PagedDecoder, kind: StepKind, weights: Weights, state: DeviceState, inputs: StepInputs
) -> tuple[DeviceState, Int[Array, " seq"]]:
    """Run one step and draw the next token of each row."""
    rows = jax.tree.map(jnp.asarray, inputs)  # the host's arrays outside, traced ones in here
    token_ids = rows.token_ids
    if kind is StepKind.DECODE:
        token_ids = state.last_token_ids.at[rows.slots].get(mode="clip")[:, None]
    paging = Paging(rows.start, rows.num_tokens, rows.page_table, rows.slots)
    hidden, cache = model.decode(weights, state.cache, StepBatch(token_ids, paging))
    last = jnp.maximum(rows.num_tokens - 1, 0)[:, None, None]
    logits = model.logits(weights, jnp.take_along_axis(hidden, last, axis=1)[:, 0])
    with jax.named_scope("sample"):
        sampled = sample(logits, rows.temperature, rows.top_p, rows.seeds, rows.start + rows.num_tokens)
    last_token_ids = state.last_token_ids.at[rows.slots].set(sampled, mode="drop")
    return DeviceState(cache, last_token_ids), sampled
