"""The compiled functions: a step of the model, the draw that follows it, and what is needed now and then.

The draw is a program of its own, so that the sampler is compiled once for each number of rows and not once for each
bucket. A prefill step and a decode step differ in their shapes only. Each slot's last token stays on the device, so
that the next step can be dispatched before this one is read.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.engine.batch import CopyInputs, CountInputs, PromptInputs, SampleInputs, StepInputs
from service.engine.logprobs import PACKED_LOGPROBS, pack_prompt_logprobs
from service.engine.options import Options, pack_options
from service.engine.plan import StepKind
from service.engine.sampler import Rows, SampledRows, count_tokens, sample
from service.engine.shapes import EngineShapes
from service.kernels.paging import Paging
from service.models.interface import Cache, PagedDecoder, StepBatch, Weights


class DeviceState(NamedTuple):
    """What lives on the device between steps; donated to each."""

    cache: Cache
    last_token_ids: Int[Array, " slot"]  # the token that each slot's next decode step starts from
    options: Options  # of each slot, as its last prefill step left them
    token_counts: Int[Array, "slot vocab"]  # right for the slots with penalties only; see `sampler.count_tokens`


class Hidden(NamedTuple):
    """What the model makes of a step's tokens; it stays on the device, for the programs that score it."""

    last: Float[Array, "seq hidden"]  # of each row's last token
    tokens: (
        Float[Array, "seq token hidden"] | None
    )  # of each token, for the prompt's log-probabilities; None of a decode


def initial_state(model: PagedDecoder, shapes: EngineShapes) -> DeviceState:
    """Return the device state before the first step."""
    num_slots = shapes.num_slots
    return DeviceState(
        cache=model.initial_cache(shapes.layout),
        last_token_ids=jnp.zeros(num_slots, jnp.int32),
        options=jax.tree.map(jnp.asarray, pack_options((), num_slots)),
        token_counts=jnp.zeros((num_slots, model.vocab_size), jnp.int32),
    )


def save_pages(model: PagedDecoder, _: Weights, state: DeviceState, copy: CopyInputs) -> tuple[DeviceState, None]:
    """Copy neighbouring pages out of a slot's row, for others to find."""
    return state._replace(cache=model.save_pages(state.cache, *(jnp.asarray(a) for a in copy))), None


def restore_pages(model: PagedDecoder, _: Weights, state: DeviceState, copy: CopyInputs) -> tuple[DeviceState, None]:
    """Copy pages that were found into a slot's row."""
    return state._replace(cache=model.restore_pages(state.cache, *(jnp.asarray(a) for a in copy))), None


def run_model(
    model: PagedDecoder, kind: StepKind, weights: Weights, state: DeviceState, inputs: StepInputs
) -> tuple[DeviceState, Hidden]:
    """Run the model over the tokens of a step."""
    token_ids = jnp.asarray(inputs.token_ids)
    if kind is StepKind.DECODE:  # row `i` is slot `i`
        token_ids = state.last_token_ids[: token_ids.shape[0], None]
    num_tokens = jnp.asarray(inputs.num_tokens)
    paging = Paging(*(jnp.asarray(a) for a in (inputs.start, num_tokens, inputs.page_table, inputs.slots)))
    hidden, cache = model.decode(weights, state.cache, StepBatch(token_ids, paging))
    state = state._replace(cache=cache)
    if kind is StepKind.DECODE:
        return state, Hidden(hidden[:, 0], None)
    last = jnp.maximum(num_tokens - 1, 0)[:, None, None]
    return state, Hidden(jnp.take_along_axis(hidden, last, axis=1)[:, 0], hidden)


def sample_step(
    model: PagedDecoder, kind: StepKind, weights: Weights, state: DeviceState, inputs: SampleInputs
) -> tuple[DeviceState, SampledRows]:
    """Draw the next token of each row, and note it in the rows' slots."""
    rows: SampleInputs = jax.tree.map(jnp.asarray, inputs)
    if rows.options is not None:
        state = state._replace(options=_write(state.options, jnp.asarray(rows.slots), rows.options))
    with jax.named_scope("sample"):
        return _sample(kind, model.logits(weights, jnp.asarray(rows.hidden)), state, rows)


def count_step(_: Weights, state: DeviceState, inputs: CountInputs) -> tuple[DeviceState, None]:
    """Count a sequence's tokens anew, for its penalties."""
    counts = count_tokens(state.token_counts, *(jnp.asarray(a) for a in inputs))
    return state._replace(token_counts=counts), None


def score_prompt(
    model: PagedDecoder, weights: Weights, state: DeviceState, inputs: PromptInputs
) -> tuple[DeviceState, Int[Array, "seq token packed"]]:
    """Return the log-probabilities of the tokens after each one of a prefill step."""
    hidden, target_ids = jnp.asarray(inputs.hidden), jnp.asarray(inputs.target_ids)
    packed = pack_prompt_logprobs(
        hidden.reshape(-1, hidden.shape[-1]), target_ids.reshape(-1), lambda part: model.logits(weights, part)
    )
    return state, packed.reshape(*target_ids.shape, PACKED_LOGPROBS)


def _sample(
    kind: StepKind, logits: Float[Array, "seq vocab"], state: DeviceState, inputs: SampleInputs
) -> tuple[DeviceState, SampledRows]:
    slots = jnp.asarray(inputs.slots)
    num_slots = state.last_token_ids.shape[0]
    options = _read(kind, state.options, slots)
    rows = Rows(
        options=options,
        slots=slots,
        token_counts=state.token_counts,
        allowed_words=jnp.asarray(inputs.allowed_words),
        positions=jnp.asarray(inputs.positions),
        is_row=slots < num_slots,
    )
    sampled = sample(logits, rows)
    # A row that must fail keeps a token id that is one, for the step after it that is under way already.
    token_ids = jnp.maximum(sampled.token_ids, 0)
    counted = jnp.where(options.has_penalties, slots, num_slots)
    state = state._replace(
        last_token_ids=state.last_token_ids.at[slots].set(token_ids, mode="drop"),
        token_counts=state.token_counts.at[counted, token_ids].add(1, mode="drop"),
    )
    return state, sampled


def _read(kind: StepKind, options: Options, slots: Int[Array, " seq"]) -> Options:
    """Return the options of each row; in a decode step row `i` is slot `i`, so that nothing is gathered."""
    if kind is StepKind.DECODE:
        return jax.tree.map(lambda leaf: leaf[: slots.shape[0]], options)
    return jax.tree.map(lambda leaf: leaf.at[slots].get(mode="clip"), options)


def _write(options: Options, slots: Int[Array, " seq"], of_rows: Options) -> Options:
    return jax.tree.map(lambda leaf, rows: leaf.at[slots].set(rows, mode="drop"), options, of_rows)
