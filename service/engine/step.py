"""The compiled function: decode, gather, sample. A prefill step and a decode step differ in their shapes only.

Each slot's last token stays on the device, so that the next step can be dispatched before this one is read.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.compile.buckets import Bucket
from service.engine.batch import CopyInputs, PrefillInputs, StepInputs, all_allowed, empty_inputs
from service.engine.logprobs import PACKED_LOGPROBS, pack_prompt_logprobs
from service.engine.options import Integer, Options, pack_options
from service.engine.plan import StepKind
from service.engine.sampler import Rows, SampledRows, sample
from service.engine.shapes import EngineShapes
from service.kernels.paging import Paging
from service.models.interface import Cache, PagedDecoder, StepBatch, Weights


class DeviceState(NamedTuple):
    """What lives on the device between steps; donated to each."""

    cache: Cache
    last_token_ids: Int[Array, " slot"]  # the token that each slot's next decode step starts from
    options: Options  # of each slot, as its last prefill step left them
    token_counts: Int[Array, "slot vocab"]  # right for the slots with penalties only; see `sampler.count_tokens`


class StepOutputs(NamedTuple):
    """What a step brings the host, padded to the bucket."""

    sampled: SampledRows
    prompt_logprobs: Int[Array, "seq token packed"] | None  # None of a decode step


def initial_state(model: PagedDecoder, shapes: EngineShapes) -> DeviceState:
    """Return the device state before the first step."""
    num_slots = shapes.num_slots
    return DeviceState(
        cache=model.initial_cache(shapes.layout),
        last_token_ids=jnp.zeros(num_slots, jnp.int32),
        options=jax.tree.map(jnp.asarray, pack_options((), num_slots)),
        token_counts=jnp.zeros((num_slots, model.vocab_size), jnp.int32),
    )


def input_shapes(kind: StepKind, bucket: Bucket, shapes: EngineShapes, vocab_size: int) -> StepInputs:
    """Return a bucket's inputs as shapes."""
    inputs = empty_inputs(kind, bucket, shapes, all_allowed(bucket["num_seqs"], vocab_size))
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), inputs)


def copy_shapes(num_pages: int) -> CopyInputs:
    """Return the inputs of a copy of so many pages as shapes."""
    number = np.zeros((), np.int32)
    inputs = CopyInputs(number, number, np.zeros(num_pages, np.int32))
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), inputs)


def save_pages(model: PagedDecoder, state: DeviceState, copy: CopyInputs) -> DeviceState:
    """Copy neighbouring pages out of a slot's row, for others to find."""
    return state._replace(cache=model.save_pages(state.cache, *jax.tree.map(jnp.asarray, copy)))


def restore_pages(model: PagedDecoder, state: DeviceState, copy: CopyInputs) -> DeviceState:
    """Copy pages that were found into a slot's row."""
    return state._replace(cache=model.restore_pages(state.cache, *jax.tree.map(jnp.asarray, copy)))


def run_step(
    model: PagedDecoder, kind: StepKind, weights: Weights, state: DeviceState, inputs: StepInputs
) -> tuple[DeviceState, StepOutputs]:
    """Run one step and draw the next token of each row."""
    rows = jax.tree.map(jnp.asarray, inputs)  # the host's arrays outside, traced ones in here
    if rows.prefill is not None:
        state = state._replace(options=_write(state.options, rows.slots, rows.prefill.options))
    token_ids = rows.token_ids
    if kind is StepKind.DECODE:
        token_ids = state.last_token_ids.at[rows.slots].get(mode="clip")[:, None]
    paging = Paging(rows.start, rows.num_tokens, rows.page_table, rows.slots)
    hidden, cache = model.decode(weights, state.cache, StepBatch(token_ids, paging))
    last = jnp.maximum(rows.num_tokens - 1, 0)[:, None, None]
    logits = model.logits(weights, jnp.take_along_axis(hidden, last, axis=1)[:, 0])
    with jax.named_scope("sample"):
        sampled, state = _sample(kind, logits, state._replace(cache=cache), rows)
    prompt_logprobs = None
    if rows.prefill is not None:
        with jax.named_scope("prompt_logprobs"):
            prompt_logprobs = _prompt_logprobs(lambda part: model.logits(weights, part), hidden, rows.prefill)
    return state, StepOutputs(sampled, prompt_logprobs)


def _sample(
    kind: StepKind, logits: Float[Array, "seq vocab"], state: DeviceState, inputs: StepInputs
) -> tuple[SampledRows, DeviceState]:
    """Draw the next token of each row, and note it in the rows' slots."""
    slots = jnp.asarray(inputs.slots)
    num_slots = state.last_token_ids.shape[0]
    options = _read(kind, state.options, slots)
    rows = Rows(
        options=options,
        slots=slots,
        token_counts=state.token_counts,
        allowed_words=jnp.asarray(inputs.allowed_words),
        positions=jnp.asarray(inputs.start + inputs.num_tokens),
        is_row=jnp.asarray(inputs.num_tokens > 0),
    )
    sampled = sample(logits, rows)
    # A row that must fail keeps a token id that is one, for the step after it that is under way already.
    token_ids = jnp.maximum(sampled.token_ids, 0)
    counted = jnp.where(options.has_penalties, slots, num_slots)
    return sampled, state._replace(
        last_token_ids=state.last_token_ids.at[slots].set(token_ids, mode="drop"),
        token_counts=state.token_counts.at[counted, token_ids].add(1, mode="drop"),
    )


def _prompt_logprobs(
    logits_of: Callable[[Float[Array, "sample hidden"]], Float[Array, "sample vocab"]],
    hidden: Float[Array, "seq token hidden"],
    prefill: PrefillInputs,
) -> Int[Array, "seq token packed"]:
    """Return the log-probabilities of the tokens after each one, if any row asks for them."""
    num_seqs, width, hidden_size = hidden.shape

    def pack_all() -> Int[Array, "position packed"]:
        target_ids = jnp.asarray(prefill.target_ids).reshape(-1)
        return pack_prompt_logprobs(hidden.reshape(-1, hidden_size), target_ids, logits_of)

    asks = jnp.any(prefill.options.integer(Integer.PROMPT_LOGPROBS) >= 0)
    packed = jax.lax.cond(asks, pack_all, lambda: jnp.zeros((num_seqs * width, PACKED_LOGPROBS), jnp.int32))
    return packed.reshape(num_seqs, width, PACKED_LOGPROBS)


def _read(kind: StepKind, options: Options, slots: Int[Array, " seq"]) -> Options:
    """Return the options of each row; in a decode step row `i` is slot `i`, so that nothing is gathered."""
    if kind is StepKind.DECODE:
        return jax.tree.map(lambda leaf: leaf[: slots.shape[0]], options)
    return jax.tree.map(lambda leaf: leaf.at[slots].get(mode="clip"), options)


def _write(options: Options, slots: Int[Array, " seq"], of_rows: Options) -> Options:
    return jax.tree.map(lambda leaf, rows: leaf.at[slots].set(rows, mode="drop"), options, of_rows)
