"""The compiled functions: the parts of a step of the model, the draw that follows it, and what is needed now and then.

A step is a call to `embed_tokens`, one to `run_stage` for each stage of the model, and the draw. The draw is a program
of its own, so that the sampler is compiled once for each number of rows and not once for each bucket. Steps of prefill
and decode differ in their shapes only. Each slot's last token stays on the device, so that the next step can be
dispatched before this one is read.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.compile.buckets import Bucket
from service.engine.schedule.plan import StepKind
from service.engine.shapes import EngineShapes
from service.engine.steps.batch import (
    CopyInputs,
    CountInputs,
    Drawing,
    LastInputs,
    PromptInputs,
    SampleInputs,
    step_inputs,
)
from service.engine.steps.logprobs import PACKED_LOGPROBS, pack_prompt_logprobs
from service.engine.steps.options import Options, pack_options
from service.engine.steps.sampler import Rows, SampledRows, count_tokens, sample
from service.kernels.paging import RowPages
from service.models.interface import Cache, PagedDecoder, Stage, StageInputs, Weights


class SlotState(NamedTuple):
    """What lives on the device between steps beside the stages' caches; donated to who changes it."""

    last_token_ids: Int[Array, " slot"]  # the token that each slot's next decode step starts from
    options: Options  # of each slot, as its last prefill step left them
    token_counts: Int[Array, "slot vocab"]  # right for the slots with penalties only; see `sampler.count_tokens`


class Embedded(NamedTuple):
    """A step before its first stage; it stays on the device."""

    stage: StageInputs
    drawing: Drawing


def initial_slots(vocab_size: int, shapes: EngineShapes) -> SlotState:
    """Return the slots before the first step."""
    num_slots = shapes.num_slots
    return SlotState(
        last_token_ids=jnp.zeros(num_slots, jnp.int32),
        options=jax.tree.map(jnp.asarray, pack_options((), num_slots)),
        token_counts=jnp.zeros((num_slots, vocab_size), jnp.int32),
    )


def embed_tokens(
    model: PagedDecoder,
    kind: StepKind,
    weights: Weights,
    slots: SlotState,
    packed: Int[Array, "seq column"],
    *,
    bucket: Bucket,
) -> tuple[SlotState, Embedded]:
    """Turn the tokens of a step into hidden states, and hand on what else the host has sent."""
    inputs = step_inputs(jnp.asarray(packed), bucket)
    is_decode = kind is StepKind.DECODE  # row `i` is then slot `i`
    token_ids = slots.last_token_ids[: len(packed), None] if is_decode else inputs.token_ids
    positions = inputs.paging.positions(token_ids.shape[1])
    stage = StageInputs(*model.embed(weights, token_ids, positions), inputs.paging)
    return slots, Embedded(stage, Drawing(inputs.drawing_slots, inputs.start + inputs.num_tokens))


def run_stage(
    model: PagedDecoder, stage: Stage, weights: list[jax.Array], cache: Cache, inputs: StageInputs
) -> tuple[Cache, Float[Array, "seq token hidden"]]:
    """Run some layers over the tokens of a step."""
    hidden, cache = model.run_stage(stage, weights, cache, jax.tree.map(jnp.asarray, inputs))
    return cache, hidden


def last_hidden(_: Weights, slots: SlotState, inputs: LastInputs) -> tuple[SlotState, Float[Array, "seq 1 hidden"]]:
    """Pick the hidden state of each row's last token."""
    last = jnp.maximum(jnp.asarray(inputs.num_tokens) - 1, 0)[:, None, None]
    return slots, jnp.take_along_axis(jnp.asarray(inputs.hidden), last, axis=1)


def save_pages(model: PagedDecoder, _: Any, cache: Cache, copy: CopyInputs) -> tuple[Cache, None]:
    """Copy neighbouring pages out of a slot's row of a stage, for others to find."""
    return model.save_pages(cache, RowPages(*(jnp.asarray(a) for a in copy))), None


def restore_pages(model: PagedDecoder, _: Any, cache: Cache, copy: CopyInputs) -> tuple[Cache, None]:
    """Copy pages that were found into a slot's row of a stage."""
    return model.restore_pages(cache, RowPages(*(jnp.asarray(a) for a in copy))), None


def sample_step(
    model: PagedDecoder, kind: StepKind, weights: Weights, slots: SlotState, inputs: SampleInputs
) -> tuple[SlotState, SampledRows]:
    """Draw the next token of each row, and note it in the rows' slots."""
    rows: SampleInputs = jax.tree.map(jnp.asarray, inputs)
    if rows.options is not None:
        slots = slots._replace(options=_write(slots.options, rows.drawing.slots, rows.options))
    with jax.named_scope("sample"):
        return _sample(kind, model.logits(weights, jnp.asarray(rows.hidden)[:, 0]), slots, rows)


def count_step(_: Weights, slots: SlotState, inputs: CountInputs) -> tuple[SlotState, None]:
    """Count a sequence's tokens anew, for its penalties."""
    counts = count_tokens(slots.token_counts, *(jnp.asarray(a) for a in inputs))
    return slots._replace(token_counts=counts), None


def score_prompt(
    model: PagedDecoder, weights: Weights, slots: SlotState, inputs: PromptInputs
) -> tuple[SlotState, Int[Array, "seq token packed"]]:
    """Return the log-probabilities of the tokens after each one of a prefill step."""
    hidden, target_ids = jnp.asarray(inputs.hidden), jnp.asarray(inputs.target_ids)
    packed = pack_prompt_logprobs(
        hidden.reshape(-1, hidden.shape[-1]), target_ids.reshape(-1), lambda part: model.logits(weights, part)
    )
    return slots, packed.reshape(*target_ids.shape, PACKED_LOGPROBS)


def _sample(
    kind: StepKind, logits: Float[Array, "seq vocab"], slots: SlotState, inputs: SampleInputs
) -> tuple[SlotState, SampledRows]:
    slot_ids = inputs.drawing.slots
    num_slots = slots.last_token_ids.shape[0]
    options = _read(kind, slots.options, slot_ids)
    rows = Rows(
        options=options,
        slots=slot_ids,
        token_counts=slots.token_counts,
        allowed_words=jnp.asarray(inputs.allowed_words),
        positions=inputs.drawing.positions,
        is_row=slot_ids < num_slots,
    )
    sampled = sample(logits, rows)
    # A row that must fail keeps a token id that is one, for the step after it that is under way already.
    token_ids = jnp.maximum(sampled.token_ids, 0)
    counted = jnp.where(options.has_penalties, slot_ids, num_slots)
    slots = slots._replace(
        last_token_ids=slots.last_token_ids.at[slot_ids].set(token_ids, mode="drop"),
        token_counts=slots.token_counts.at[counted, token_ids].add(1, mode="drop"),
    )
    return slots, sampled


def _read(kind: StepKind, options: Options, slots: Int[Array, " seq"]) -> Options:
    """Return the options of each row; in a decode step row `i` is slot `i`, so that nothing is gathered."""
    if kind is StepKind.DECODE:
        return jax.tree.map(lambda leaf: leaf[: slots.shape[0]], options)
    return jax.tree.map(lambda leaf: leaf.at[slots].get(mode="clip"), options)


def _write(options: Options, slots: Int[Array, " seq"], of_rows: Options) -> Options:
    return jax.tree.map(lambda leaf, rows: leaf.at[slots].set(rows, mode="drop"), options, of_rows)
