"""The compiled functions: the parts of a step of the model, the sampling that follows it, and occasional ones.

A step is a call of `embed_tokens`, one of `run_layer_group` for each layer group of the model, and one of
`sample_step`, which is compiled once for each number of slots and not once for each bucket. Each slot's last token
stays on the device, so that the next step can be dispatched before this one is read.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32

from service.engine.shapes import Bucket, EngineShapes
from service.engine.steps.features import Features, with_shown
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
from service.models.interface import (
    Cache,
    HasLayerInputs,
    LayerGroup,
    LayerGroupInputs,
    PagedDecoder,
    ShowsHidden,
    Weights,
)

# Tokens that most steps with drafts sample, so that a program of its own for these is worth its time to compile.
FEW_SAMPLES = 8


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
    taps: Int[Any, " tap"] | None = None  # as `taps_in` returns them; None of an engine that keeps no features


class GroupOutputs(NamedTuple):
    """The outputs of a layer group, which stay on the device."""

    hidden: Float[Array, "token hidden"]
    last: Float[Array, "slot hidden"] | None  # of the token before the one to be sampled; None if that is `hidden`


def initial_slots(vocab_size: int, shapes: EngineShapes) -> SlotState:
    """Return the slots before the first step."""
    num_slots = shapes.num_samples
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
    model: PagedDecoder,
    group: LayerGroup,
    weights: list[jax.Array],
    state: tuple[Cache, Features | None],
    inputs: StepGroupInputs,
) -> tuple[tuple[Cache, Features | None], GroupOutputs]:
    """Run some layers over the tokens of a step.

    Args:
        model: the model.
        group: the layers.
        weights: theirs.
        state: their cache, and the features; None of an engine that keeps none.
        inputs: the tokens of the step as layers take them, and the layers whose inputs become features.
    """
    layers, places, taps = jax.tree.map(jnp.asarray, inputs)
    cache, features = state
    if features is None:
        hidden, cache = model.run_layer_group(group, weights, cache, layers)
    else:
        assert isinstance(model, ShowsHidden), "features are kept of a model that shows its hidden states"
        hidden, cache, shown = model.show_layer_group(group, weights, cache, layers, taps)
        features = with_shown(features, shown, layers.regions, taps)
    return (cache, features), GroupOutputs(hidden, None if places is None else hidden[places])


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
    can_branch: bool = False,
) -> tuple[SlotState, Sampled]:
    """Sample the next token of each slot by a function, and leave it in the slot.

    If the step verifies drafts, it samples several tokens of a sequence, of which the last that counts stays in its
    slot; see `Drafted`. If the logits stay split, devices exchange what the function reduces them to, and never the
    logits. If the program can branch, it does less where it samples few tokens.
    """
    positions = jnp.asarray(inputs.positions)
    count = len(positions)
    is_sampled = positions >= 0
    of_samples = None if inputs.drafted is None else jnp.asarray(inputs.drafted.slots)
    state = SamplingState(
        options=jax.tree.map(lambda leaf: leaf[:count] if of_samples is None else leaf[of_samples], slots.options),
        token_counts=slots.token_counts[:count] if of_samples is None else slots.token_counts,
        positions=positions,
        is_sampled=is_sampled,
        slots=of_samples,
    )
    num_used = jnp.max(jnp.where(is_sampled, jnp.arange(1, count + 1), 0))
    hidden = jnp.asarray(inputs.hidden)
    token_mask = None if inputs.token_mask is None else jnp.asarray(inputs.token_mask)

    def sample_first(num: int) -> Sampled:
        logits = model.logits(weights, hidden[:num], num_used, stays_split=stays_split)
        with jax.named_scope("sample"):
            first = sampler(logits, state.first(num), None if token_mask is None else token_mask[:num])
        return jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, count - num), *((0, 0),) * (leaf.ndim - 1))), first)

    if can_branch and count > FEW_SAMPLES:
        # For many, most of the time would be spent on padding.
        of_few, of_all = (partial(sample_first, num) for num in (FEW_SAMPLES, count))
        sampled = jax.lax.cond(num_used <= FEW_SAMPLES, of_few, of_all)
    else:
        sampled = sample_first(count)
    # A sequence that must fail keeps a valid token id, for the step in flight behind this one.
    token_ids = jnp.maximum(sampled.token_ids, 0)
    num_slots = len(slots.last_token_ids)
    if inputs.drafted is None or of_samples is None:
        changed = jnp.where(is_sampled, jnp.arange(count), num_slots)
        of_first = jnp.where(is_sampled, token_ids, slots.last_token_ids[:count])
        last_token_ids = slots.last_token_ids.at[:count].set(of_first)
    else:
        is_last = _is_last(sampled.token_ids, of_samples, jnp.asarray(inputs.drafted.token_ids))
        changed = jnp.where(is_sampled & is_last, of_samples, num_slots)
        last_token_ids = slots.last_token_ids.at[changed].set(token_ids, mode="drop")
    counted = jnp.where(state.options.has_penalties, changed, num_slots)
    slots = slots._replace(
        last_token_ids=last_token_ids,
        token_counts=slots.token_counts.at[counted, token_ids].add(1, mode="drop"),
    )
    return slots, sampled


def _is_last(
    token_ids: Int[Array, " sample"], slots: Int[Array, " sample"], drafted: Int[Array, " sample"]
) -> Bool[Array, " sample"]:
    """Return which sampled tokens their sequences go on with: the first of each that is not as drafted."""
    differs = token_ids != drafted
    samples = jnp.arange(len(token_ids))
    is_before = (slots[:, None] == slots[None]) & (samples[:, None] > samples[None])
    return differs & ~jnp.any(is_before & differs[None], axis=1)


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
