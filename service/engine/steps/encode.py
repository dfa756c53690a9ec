"""The compiled functions of an encoder: features to keys and values in pages and what attends to them, or to rows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.engine.shapes import Bucket, RowShapes
from service.engine.steps.inputs import NOT_MEDIA, EmbedInputs, step_inputs
from service.engine.steps.step import Embedded, GroupOutputs, SlotState, StepGroupInputs, embed_tokens
from service.kernels.paging import Paging
from service.models.interface import Cache, HasLayerInputs, LayerGroup, MediaEncoder, PagedDecoder, TakesMedia, Weights


class RememberInputs(NamedTuple):
    """An encoder's output, and the pages that it is written to."""

    output: Float[Any, "position hidden"]
    pages: Int[Any, " page"]


class KeepInputs(NamedTuple):
    """The hidden states after an encoder's last layer, and where the output is kept among the rows of all media."""

    hidden: Any
    places: Int[Any, " place"]


class AttendInputs(NamedTuple):
    """The inputs of a layer group whose scores of the memory are wanted."""

    step: StepGroupInputs
    heads: Int[Any, "layer head"]


class AttendOutputs(NamedTuple):
    """The outputs of a layer group, and the scores of its heads."""

    group: GroupOutputs
    scores: Float[Array, "layer head prompt_token position"]


def attend_layer_group(
    model: TakesMedia, group: LayerGroup, weights: list[jax.Array], cache: Cache, inputs: AttendInputs
) -> tuple[Cache, AttendOutputs]:
    """Run some layers over the tokens of a step, and return what heads of them attend to."""
    (layers, places, _), heads = jax.tree.map(jnp.asarray, inputs)
    hidden, cache, scores = model.attend_layer_group(group, weights, cache, layers, heads)
    return cache, AttendOutputs(GroupOutputs(hidden, None if places is None else hidden[places]), scores)


def encode_begin(encoder: MediaEncoder, weights: Weights, _: tuple[()], features: Any) -> tuple[tuple[()], Any]:
    """Return the hidden states before the first layer."""
    return (), encoder.begin(weights, jax.tree.map(jnp.asarray, features))


def encode_layers(
    encoder: MediaEncoder, group: LayerGroup, weights: list[jax.Array], _: tuple[()], hidden: Any
) -> tuple[tuple[()], Any]:
    """Run a group's layers."""
    return (), encoder.run_layer_group(group, weights, jax.tree.map(jnp.asarray, hidden))


def encode_end(
    encoder: MediaEncoder, weights: Weights, _: tuple[()], hidden: Any
) -> tuple[tuple[()], Float[Array, "row *level output"]]:
    """Return the output."""
    return (), encoder.end(weights, jax.tree.map(jnp.asarray, hidden))


def remember(
    model: TakesMedia, group: LayerGroup, weights: list[jax.Array], cache: Cache, inputs: RememberInputs
) -> tuple[Cache, Int[Array, ""]]:
    """Write an encoder's output into the cache of a layer group, and return something to wait for."""
    output, pages = jax.tree.map(jnp.asarray, inputs)
    paging = Paging(jnp.zeros(1, jnp.int32), jnp.full(1, len(output), jnp.int32), pages[None])
    return model.remember(group, weights, cache, output, paging), jnp.int32(0)


def initial_rows(shapes: RowShapes, hidden_size: int, dtype: np.dtype) -> Float[Array, "place row level hidden"]:
    """Return the rows of all media before any is encoded."""
    return jnp.zeros((shapes.num_places, shapes.place_rows, 1 + shapes.num_added, hidden_size), dtype)


def keep_rows(
    encoder: MediaEncoder, weights: Weights, rows: Float[Array, "place row level hidden"], inputs: KeepInputs
) -> tuple[Float[Array, "place row level hidden"], Int[Array, ""]]:
    """Write an encoder's output among the rows of all media, and return something to wait for."""
    hidden, places = jax.tree.map(jnp.asarray, inputs)
    output = encoder.end(weights, hidden)
    levels = output.reshape(len(output), *rows.shape[2:]).astype(rows.dtype)
    missing = len(places) * rows.shape[1] - len(levels)
    padded = jnp.pad(levels, ((0, missing), (0, 0), (0, 0)))
    return rows.at[places].set(padded.reshape(len(places), *rows.shape[1:]), mode="drop"), jnp.int32(0)


def embed_media(
    model: PagedDecoder,
    bucket: Bucket,
    weights: Weights,
    slots: SlotState,
    inputs: EmbedInputs,
    *,
    has_adapters: bool,
) -> tuple[SlotState, Embedded]:
    """Begin a step as `embed_tokens` does, with rows of media in place of some tokens of prompts.

    Args:
        model: the model.
        bucket: the shape of the step.
        weights: the embedding table, by name.
        slots: whose last tokens the decode steps start from.
        inputs: the host's, and the rows of all media.
        has_adapters: whether the host's inputs have slots of adapters.
    """
    numbers, rows = jnp.asarray(inputs.media_rows), jnp.asarray(inputs.rows)
    ahead = inputs.media_ahead
    slots, embedded = embed_tokens(model, bucket, weights, slots, inputs, has_adapters=has_adapters, ahead=ahead)
    hidden, numbers = embedded.inputs.hidden, numbers.reshape(-1)
    is_seen = (numbers != NOT_MEDIA)[:, None]
    levels = rows.reshape(-1, *rows.shape[2:])[jnp.maximum(numbers, 0)].astype(hidden.dtype)
    seen = jnp.where(is_seen, levels[:, 0], hidden[bucket.num_seqs :])
    layers = embedded.inputs._replace(hidden=jnp.concatenate([hidden[: bucket.num_seqs], seen]))
    if rows.shape[2] > 1:
        added = jnp.where(is_seen[:, None], levels[:, 1:], 0).swapaxes(0, 1)
        layers = layers._replace(added=jnp.pad(added, ((0, 0), (bucket.num_seqs, 0), (0, 0))))
    if not embedded.per_layer or not isinstance(model, HasLayerInputs):
        return slots, embedded._replace(inputs=layers)
    step = step_inputs(jnp.asarray(inputs.packed), inputs.page_table, bucket, has_adapters=has_adapters)
    token_ids = jnp.concatenate([slots.last_token_ids[: bucket.num_seqs], step.token_ids.reshape(-1)])
    is_media = jnp.concatenate([jnp.zeros(bucket.num_seqs, bool), is_seen[:, 0]])
    per_layer = model.per_layer_inputs(weights, token_ids, layers.hidden, is_media)
    return slots, embedded._replace(inputs=layers, per_layer=per_layer)
