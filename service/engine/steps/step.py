"""The compiled functions: the parts of a step of the model, the sampling that follows it, and occasional ones.

A step is a call of `embed_tokens`, one of `run_layer_group` for each layer group of the model, and the sampling:
`logits_step` and `choose_step`, with `adjust_step` in between and `logprobs_step` at the end if a sequence needs them.
Sampling is compiled once for each number of sequences and not once for each bucket.
Steps of prefill and decode differ only in their shapes. Each slot's last token stays on the device, so that the next
step can be dispatched before this one is read.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.engine.shapes import EngineShapes, StepKind
from service.engine.steps.inputs import (
    AdjustInputs,
    ChooseInputs,
    CountInputs,
    LogprobInputs,
    OptionInputs,
    Options,
    SampleTargets,
    neutral_options,
    step_inputs,
)
from service.engine.steps.logprobs import pack_logprobs
from service.engine.steps.sampling import SamplingState, adjust_logits, count_tokens
from service.models.interface import Cache, LayerGroup, LayerGroupInputs, PagedDecoder, Weights


class SlotState(NamedTuple):
    """The state on the device between steps, except the caches; donated to each program that changes it."""

    last_token_ids: Int[Array, " slot"]  # the token that each slot's next decode step starts from
    options: Options  # of each slot, as its last prefill step left them
    token_counts: Int[Array, "slot vocab"]  # defined for slots with penalties only; see `count_tokens`


class Embedded(NamedTuple):
    """A step before its first layer group; it stays on the device."""

    inputs: LayerGroupInputs  # but for its page table, which the host sends to the layer groups
    targets: SampleTargets


class GroupOutputs(NamedTuple):
    """The outputs of a layer group, which stay on the device."""

    hidden: Float[Array, "seq token hidden"]
    last: Float[Array, "seq 1 hidden"] | None  # of each sequence's last token; None if the step has one token each


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
) -> tuple[SlotState, Embedded]:
    """Embed the tokens of a step, and pass on the rest of the host's inputs."""
    inputs = step_inputs(jnp.asarray(packed), jnp.zeros((len(packed), 0), jnp.int32))
    is_decode = kind is StepKind.DECODE  # sequence `i` is then in slot `i`
    token_ids = slots.last_token_ids[: len(packed), None] if is_decode else inputs.token_ids
    positions = inputs.paging.positions(token_ids.shape[1])
    group_inputs = LayerGroupInputs(*model.embed(weights, token_ids, positions), inputs.paging)
    return slots, Embedded(group_inputs, SampleTargets(inputs.sample_slots, inputs.start + inputs.num_tokens))


def run_layer_group(
    model: PagedDecoder, group: LayerGroup, weights: list[jax.Array], cache: Cache, inputs: LayerGroupInputs
) -> tuple[Cache, GroupOutputs]:
    """Run some layers over the tokens of a step."""
    arrays: LayerGroupInputs = jax.tree.map(jnp.asarray, inputs)
    hidden, cache = model.run_layer_group(group, weights, cache, arrays)
    if hidden.shape[1] == 1:
        return cache, GroupOutputs(hidden, None)
    last = jnp.maximum(arrays.paging.num_tokens - 1, 0)[:, None, None]
    return cache, GroupOutputs(hidden, jnp.take_along_axis(hidden, last, axis=1))


def set_options(_: Weights, slots: SlotState, inputs: OptionInputs) -> tuple[SlotState, None]:
    """Leave the options of sequences in their slots."""
    arrays: OptionInputs = jax.tree.map(jnp.asarray, inputs)
    written = jax.tree.map(
        lambda leaf, of_seqs: leaf.at[arrays.slots].set(of_seqs, mode="drop"), slots.options, arrays.options
    )
    return slots._replace(options=written), None


def logits_step(
    model: PagedDecoder, weights: Weights, slots: SlotState, hidden: Float[Array, "seq 1 hidden"]
) -> tuple[SlotState, Float[Array, "seq vocab"]]:
    """Return the logits of the tokens that follow a step."""
    return slots, model.logits(weights, jnp.asarray(hidden)[:, 0])


def adjust_step(
    can_branch: bool, _: Weights, slots: SlotState, inputs: AdjustInputs
) -> tuple[SlotState, Float[Array, "seq vocab"]]:
    """Apply the options that change logits."""
    with jax.named_scope("adjust"):
        state = _sampling_state(slots, inputs.targets)
        token_mask = jnp.asarray(inputs.token_mask)
        return slots, adjust_logits(jnp.asarray(inputs.logits), state, token_mask, can_branch=can_branch)


def choose_step(
    choose: Callable[[Float[Array, "seq vocab"], SamplingState], Int[Array, " seq"]],
    _: Weights,
    slots: SlotState,
    inputs: ChooseInputs,
) -> tuple[SlotState, Int[Array, " seq"]]:
    """Choose the next token of each sequence by a function, and leave it in the sequence's slot."""
    num_slots = slots.last_token_ids.shape[0]
    state = _sampling_state(slots, inputs.targets)
    with jax.named_scope("choose"):
        chosen = choose(jnp.asarray(inputs.logits), state)
    # A sequence that must fail keeps a valid token id, for the step in flight behind this one.
    token_ids = jnp.maximum(chosen, 0)
    counted = jnp.where(state.options.has_penalties, state.slots, num_slots)
    slots = slots._replace(
        last_token_ids=slots.last_token_ids.at[state.slots].set(token_ids, mode="drop"),
        token_counts=slots.token_counts.at[counted, token_ids].add(1, mode="drop"),
    )
    return slots, chosen


def logprobs_step(_: Weights, slots: SlotState, inputs: LogprobInputs) -> tuple[SlotState, Int[Array, "seq packed"]]:
    """Return the log-probabilities of chosen tokens."""
    return slots, pack_logprobs(jnp.asarray(inputs.logits), jnp.maximum(jnp.asarray(inputs.token_ids), 0))


def count_step(_: Weights, slots: SlotState, inputs: CountInputs) -> tuple[SlotState, None]:
    """Count a sequence's tokens, for its penalties."""
    counts = count_tokens(slots.token_counts, *(jnp.asarray(a) for a in inputs))
    return slots._replace(token_counts=counts), None


def _sampling_state(slots: SlotState, targets: SampleTargets) -> SamplingState:
    slot_ids = jnp.asarray(targets.slots)
    return SamplingState(
        options=jax.tree.map(lambda leaf: leaf.at[slot_ids].get(mode="clip"), slots.options),
        slots=slot_ids,
        token_counts=slots.token_counts,
        positions=jnp.asarray(targets.positions),
        is_sequence=slot_ids < slots.last_token_ids.shape[0],
    )
