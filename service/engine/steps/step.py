"""The compiled functions: the parts of a step of the model, the sampling that follows it, and occasional ones.

A step is a call of `embed_tokens`, one of `run_layer_group` for each layer group of the model, and the sampling.
Sampling is a program of its own, so that it is compiled once for each number of sequences and not once for each bucket.
Steps of prefill and decode differ only in their shapes. Each slot's last token stays on the device, so that the next
step can be dispatched before this one is read.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.engine.shapes import Bucket, EngineShapes, StepKind
from service.engine.steps.inputs import (
    CopyInputs,
    CountInputs,
    LastHiddenInputs,
    Options,
    PromptLogprobInputs,
    SampleInputs,
    SampleTargets,
    neutral_options,
    step_inputs,
)
from service.engine.steps.logprobs import PACKED_LOGPROBS, pack_prompt_logprobs
from service.engine.steps.sampling import SampledTokens, SamplingState, count_tokens, sample_tokens
from service.kernels.paging import RowPages
from service.models.interface import Cache, LayerGroup, LayerGroupInputs, PagedDecoder, Weights


class SlotState(NamedTuple):
    """The state on the device between steps, except the caches; donated to each program that changes it."""

    last_token_ids: Int[Array, " slot"]  # the token that each slot's next decode step starts from
    options: Options  # of each slot, as its last prefill step left them
    token_counts: Int[Array, "slot vocab"]  # defined for slots with penalties only; see `count_tokens`


class Embedded(NamedTuple):
    """A step before its first layer group; it stays on the device."""

    inputs: LayerGroupInputs
    targets: SampleTargets


def initial_slots(vocab_size: int, shapes: EngineShapes) -> SlotState:
    """Return the slots before the first step."""
    num_slots = shapes.num_slots
    return SlotState(
        last_token_ids=jnp.zeros(num_slots, jnp.int32),
        options=jax.tree.map(jnp.asarray, neutral_options(num_slots)),
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
    """Embed the tokens of a step, and pass on the rest of the host's inputs."""
    inputs = step_inputs(jnp.asarray(packed), bucket)
    is_decode = kind is StepKind.DECODE  # sequence `i` is then in slot `i`
    token_ids = slots.last_token_ids[: len(packed), None] if is_decode else inputs.token_ids
    positions = inputs.paging.positions(token_ids.shape[1])
    group_inputs = LayerGroupInputs(*model.embed(weights, token_ids, positions), inputs.paging)
    return slots, Embedded(group_inputs, SampleTargets(inputs.sample_slots, inputs.start + inputs.num_tokens))


def run_layer_group(
    model: PagedDecoder, group: LayerGroup, weights: list[jax.Array], cache: Cache, inputs: LayerGroupInputs
) -> tuple[Cache, Float[Array, "seq token hidden"]]:
    """Run some layers over the tokens of a step."""
    hidden, cache = model.run_layer_group(group, weights, cache, jax.tree.map(jnp.asarray, inputs))
    return cache, hidden


def last_hidden(
    _: Weights, slots: SlotState, inputs: LastHiddenInputs
) -> tuple[SlotState, Float[Array, "seq 1 hidden"]]:
    """Return the hidden state of each sequence's last token."""
    last = jnp.maximum(jnp.asarray(inputs.num_tokens) - 1, 0)[:, None, None]
    return slots, jnp.take_along_axis(jnp.asarray(inputs.hidden), last, axis=1)


def save_pages(model: PagedDecoder, _: Any, cache: Cache, copy: CopyInputs) -> tuple[Cache, None]:
    """Copy neighbouring pages out of a slot's row, in the layers of a group."""
    return model.save_pages(cache, RowPages(*(jnp.asarray(a) for a in copy))), None


def restore_pages(model: PagedDecoder, _: Any, cache: Cache, copy: CopyInputs) -> tuple[Cache, None]:
    """Copy the pages of a cached prefix into a slot's row, in the layers of a group."""
    return model.restore_pages(cache, RowPages(*(jnp.asarray(a) for a in copy))), None


def sample_step(
    model: PagedDecoder, kind: StepKind, weights: Weights, slots: SlotState, inputs: SampleInputs
) -> tuple[SlotState, SampledTokens]:
    """Sample the next token of each sequence, and leave it in the sequence's slot."""
    arrays: SampleInputs = jax.tree.map(jnp.asarray, inputs)
    if arrays.options is not None:
        slots = slots._replace(options=_write(slots.options, arrays.targets.slots, arrays.options))
    with jax.named_scope("sample"):
        return _sample(kind, model.logits(weights, jnp.asarray(arrays.hidden)[:, 0]), slots, arrays)


def count_step(_: Weights, slots: SlotState, inputs: CountInputs) -> tuple[SlotState, None]:
    """Count a sequence's tokens, for its penalties."""
    counts = count_tokens(slots.token_counts, *(jnp.asarray(a) for a in inputs))
    return slots._replace(token_counts=counts), None


def prompt_logprobs(
    model: PagedDecoder, weights: Weights, slots: SlotState, inputs: PromptLogprobInputs
) -> tuple[SlotState, Int[Array, "seq token packed"]]:
    """Return the log-probability of the token after each position of a prefill step."""
    hidden, target_ids = jnp.asarray(inputs.hidden), jnp.asarray(inputs.target_ids)
    packed = pack_prompt_logprobs(
        hidden.reshape(-1, hidden.shape[-1]), target_ids.reshape(-1), lambda part: model.logits(weights, part)
    )
    return slots, packed.reshape(*target_ids.shape, PACKED_LOGPROBS)


def _sample(
    kind: StepKind, logits: Float[Array, "seq vocab"], slots: SlotState, inputs: SampleInputs
) -> tuple[SlotState, SampledTokens]:
    slot_ids = inputs.targets.slots
    num_slots = slots.last_token_ids.shape[0]
    options = _read(kind, slots.options, slot_ids)
    state = SamplingState(
        options=options,
        slots=slot_ids,
        token_counts=slots.token_counts,
        token_mask=jnp.asarray(inputs.token_mask),
        positions=inputs.targets.positions,
        is_sequence=slot_ids < num_slots,
    )
    sampled = sample_tokens(logits, state)
    # A sequence that must fail keeps a valid token id, for the step in flight behind this one.
    token_ids = jnp.maximum(sampled.token_ids, 0)
    counted = jnp.where(options.has_penalties, slot_ids, num_slots)
    slots = slots._replace(
        last_token_ids=slots.last_token_ids.at[slot_ids].set(token_ids, mode="drop"),
        token_counts=slots.token_counts.at[counted, token_ids].add(1, mode="drop"),
    )
    return slots, sampled


def _read(kind: StepKind, options: Options, slots: Int[Array, " seq"]) -> Options:
    """Return each sequence's options; a decode step's sequence `i` is in slot `i`, so nothing is gathered."""
    if kind is StepKind.DECODE:
        return jax.tree.map(lambda leaf: leaf[: slots.shape[0]], options)
    return jax.tree.map(lambda leaf: leaf.at[slots].get(mode="clip"), options)


def _write(options: Options, slots: Int[Array, " seq"], of_seqs: Options) -> Options:
    return jax.tree.map(lambda leaf, seqs: leaf.at[slots].set(seqs, mode="drop"), options, of_seqs)
