"""The compiled functions: the parts of a step of the model, the sampling that follows it, and occasional ones.

A step is a call of `embed_tokens`, one of `run_layer_group` for each layer group of the model, and one of
`sample_step`, which is compiled once for each number of slots and not once for each bucket. Each slot's last token
stays on the device, so that the next step can be dispatched before this one is read.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32

from service.engine.shapes import Bucket, EngineShapes
from service.engine.steps.inputs import (
    AdapterInputs,
    CountInputs,
    EmbedInputs,
    OptionInputs,
    Options,
    PromptInputs,
    SampleInputs,
    in_windows,
    neutral_options,
    step_inputs,
)
from service.engine.steps.logprobs import pack_logprobs
from service.engine.steps.sampling import Sampled, SamplingState, count_tokens
from service.models.interface import Cache, HasLayerInputs, LayerGroup, LayerGroupInputs, PagedDecoder, Weights


class SlotState(NamedTuple):
    """The state on the device between steps, except the caches; donated to each program that changes it."""

    last_token_ids: Int[Array, " slot"]  # the token that each slot's next decode step starts from
    options: Options  # of each slot, as the step left them in which its prompt ended
    token_counts: Int[Array, "slot vocab"]  # defined for slots with penalties only; see `count_tokens`


class Embedded(NamedTuple):
    """A step before its first layer group; it stays on the device."""

    inputs: LayerGroupInputs
    places: Int[Array, " slot"] | None  # of the tokens before those to be sampled; None if they are all of the step's
    sampled: Int[Array, " slot"]  # positions of the tokens to be sampled
    per_layer: tuple[Float[Array, "layer token size"], ...] = ()  # of each layer group; of most models nothing


class StepGroupInputs(NamedTuple):
    """The inputs of a layer group's program."""

    layers: LayerGroupInputs
    places: Int[Any, " slot"] | None  # of the tokens before those to be sampled; None if they are all of the step's


class GroupOutputs(NamedTuple):
    """The outputs of a layer group, which stay on the device."""

    hidden: Float[Array, "token hidden"]
    last: Float[Array, "slot hidden"] | None  # of the token before the one to be sampled; None if that is `hidden`


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
    bucket: Bucket,
    weights: Weights,
    slots: SlotState,
    inputs: EmbedInputs,
    *,
    has_adapters: bool,
    ahead: Int[Any, "row token"] | None = None,
) -> tuple[SlotState, Embedded]:
    """Embed the tokens of a step, and pass on the rest of the host's inputs.

    Args:
        model: the model.
        bucket: the shape of the step.
        weights: the embedding table, by name.
        slots: whose last tokens the decode steps start from.
        inputs: the host's.
        has_adapters: whether these have slots of adapters.
        ahead: how many positions after its own each token of a prompt sees; None for a model where none sees any.
    """
    host: EmbedInputs = jax.tree.map(jnp.asarray, inputs)
    step = step_inputs(host.packed, host.page_table, bucket, has_adapters=has_adapters)
    token_ids = jnp.concatenate([slots.last_token_ids[: bucket.num_seqs], step.token_ids.reshape(-1)])
    regions = step._replace(states=host.states).regions
    memory = None
    if host.memory_table is not None:
        memory = regions.with_page_table(host.memory_table).of_length(model.memory_len)
    if ahead is not None:
        regions = regions._replace(prompts=regions.prompts._replace(ahead=jnp.asarray(ahead)))
    positions = regions.positions(len(token_ids)) if host.positions is None else host.positions
    embedded = model.embed(weights, token_ids, positions)
    windows = in_windows(regions, host.windows)
    layers = LayerGroupInputs(*embedded, regions, memory, adapters=step.token_adapters(), windows=windows)
    has_inputs = isinstance(model, HasLayerInputs)
    per_layer = model.per_layer_inputs(weights, token_ids, layers.hidden) if has_inputs else ()
    return slots, Embedded(layers, step.places if bucket.num_rows else None, step.sampled, per_layer)


def run_layer_group(
    model: PagedDecoder, group: LayerGroup, weights: list[jax.Array], cache: Cache, inputs: StepGroupInputs
) -> tuple[Cache, GroupOutputs]:
    """Run some layers over the tokens of a step."""
    layers, places = jax.tree.map(jnp.asarray, inputs)
    hidden, cache = model.run_layer_group(group, weights, cache, layers)
    return cache, GroupOutputs(hidden, None if places is None else hidden[places])


def write_adapter(_: Any, arrays: list[jax.Array], inputs: AdapterInputs) -> tuple[list[jax.Array], None]:
    """Write an adapter into its slot, for a layer group."""
    slot = jnp.asarray(inputs.slot)
    return [array.at[slot].set(new, mode="drop") for array, new in zip(arrays, inputs.arrays, strict=True)], None


def set_options(_: Weights, slots: SlotState, inputs: OptionInputs) -> tuple[SlotState, None]:
    """Leave the options of sequences in their slots."""
    arrays: OptionInputs = jax.tree.map(jnp.asarray, inputs)
    written = jax.tree.map(
        lambda leaf, of_seqs: leaf.at[arrays.slots].set(of_seqs, mode="drop"), slots.options, arrays.options
    )
    return slots._replace(options=written), None


def sample_step(
    model: PagedDecoder,
    sampler: Callable[[Float[Array, "slot vocab"], SamplingState, Any], Sampled],
    weights: Weights,
    slots: SlotState,
    inputs: SampleInputs,
    *,
    stays_split: bool = False,
) -> tuple[SlotState, Sampled]:
    """Sample the next token of each slot by a function, and leave it in the slot.

    If the logits stay split, devices exchange what the function reduces them to, and never the logits.
    """
    positions = jnp.asarray(inputs.positions)
    count = len(positions)
    is_sampled = positions >= 0
    state = SamplingState(
        options=jax.tree.map(lambda leaf: leaf[:count], slots.options),
        token_counts=slots.token_counts[:count],
        positions=positions,
        is_sampled=is_sampled,
    )
    num_used = jnp.max(jnp.where(is_sampled, jnp.arange(1, count + 1), 0))
    logits = model.logits(weights, jnp.asarray(inputs.hidden), num_used, stays_split=stays_split)
    with jax.named_scope("sample"):
        token_mask = None if inputs.token_mask is None else jnp.asarray(inputs.token_mask)
        sampled = sampler(logits, state, token_mask)
    # A sequence that must fail keeps a valid token id, for the step in flight behind this one.
    token_ids = jnp.maximum(sampled.token_ids, 0)
    last_token_ids = jnp.where(is_sampled, token_ids, slots.last_token_ids[:count])
    counted = jnp.where(is_sampled & state.options.has_penalties, jnp.arange(count), slots.last_token_ids.shape[0])
    slots = slots._replace(
        last_token_ids=slots.last_token_ids.at[:count].set(last_token_ids),
        token_counts=slots.token_counts.at[counted, token_ids].add(1, mode="drop"),
    )
    return slots, sampled


def prompt_logprobs_step(
    model: PagedDecoder, weights: Weights, slots: SlotState, inputs: PromptInputs
) -> tuple[SlotState, Int32[Array, "position packed"]]:
    """Return the log-probabilities of tokens of a prompt."""
    logits = model.logits(weights, jnp.asarray(inputs.hidden), jnp.int32(len(inputs.hidden)))
    return slots, pack_logprobs(logits, jnp.asarray(inputs.token_ids))


def count_step(_: Weights, slots: SlotState, inputs: CountInputs) -> tuple[SlotState, None]:
    """Count a sequence's tokens, for its penalties."""
    counts = count_tokens(slots.token_counts, *(jnp.asarray(a) for a in inputs))
    return slots._replace(token_counts=counts), None
