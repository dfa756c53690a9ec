"""The compiled functions of an encoder: features to keys and values in pages and what attends to them, or to rows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from service.engine.shapes import Bucket, RowShapes
from service.engine.steps.inputs import NOT_MEDIA
from service.engine.steps.step import Embedded, GroupInputs, GroupOutputs, SlotState, embed_tokens, layer_inputs
from service.kernels.paging import Paging
from service.models.interface import Cache, LayerGroup, MediaEncoder, PagedDecoder, TakesMedia, Weights


class RememberInputs(NamedTuple):
    """An encoder's output, and the pages that it is written to."""

    output: Float[Any, "position hidden"]
    pages: Int[Any, " page"]


class KeepInputs(NamedTuple):
    """An encoder's output, and where it is kept among the rows of all media."""

    output: Float[Any, "row hidden"]
    place: Int[Any, ""]


class MediaInputs(NamedTuple):
    """The host's part of a step in which rows take the places of tokens, and the rows of all media."""

    packed: Int[Any, " number"]
    numbers: Int[Any, "prompt_row token"]  # of the rows; NOT_MEDIA for tokens
    rows: Float[Any, "medium row hidden"]


class AttendInputs(NamedTuple):
    """The inputs of a layer group whose scores of the memory are wanted."""

    step: GroupInputs
    heads: Int[Any, "layer head"]


class AttendOutputs(NamedTuple):
    """The outputs of a layer group, and the scores of its heads."""

    group: GroupOutputs
    scores: Float[Array, "layer head prompt_token position"]


def attend_layer_group(
    model: TakesMedia, group: LayerGroup, weights: list[jax.Array], cache: Cache, inputs: AttendInputs
) -> tuple[Cache, AttendOutputs]:
    """Run some layers over the tokens of a step, and return what heads of them attend to."""
    layers, places = layer_inputs(inputs.step, model.memory_len)
    hidden, cache, scores = model.attend_layer_group(group, weights, cache, layers, jnp.asarray(inputs.heads))
    return cache, AttendOutputs(GroupOutputs(hidden, None if places is None else hidden[places]), scores)


def encode_begin(
    encoder: MediaEncoder, weights: Weights, _: tuple[()], features: Num[Array, "*features"]
) -> tuple[tuple[()], Float[Array, "position hidden"]]:
    """Return the hidden states before the first layer."""
    return (), encoder.begin(weights, jnp.asarray(features))


def encode_layers(
    encoder: MediaEncoder,
    group: LayerGroup,
    weights: list[jax.Array],
    _: tuple[()],
    hidden: Float[Array, "position hidden"],
) -> tuple[tuple[()], Float[Array, "position hidden"]]:
    """Run a group's layers."""
    return (), encoder.run_layer_group(group, weights, jnp.asarray(hidden))


def encode_end(
    encoder: MediaEncoder, weights: Weights, _: tuple[()], hidden: Float[Array, "position hidden"]
) -> tuple[tuple[()], Float[Array, "row output"]]:
    """Return the output."""
    return (), encoder.end(weights, jnp.asarray(hidden))


def remember(
    model: TakesMedia, group: LayerGroup, weights: list[jax.Array], cache: Cache, inputs: RememberInputs
) -> tuple[Cache, Int[Array, ""]]:
    """Write an encoder's output into the cache of a layer group, and return something to wait for."""
    output, pages = jax.tree.map(jnp.asarray, inputs)
    paging = Paging(jnp.zeros(1, jnp.int32), jnp.full(1, len(output), jnp.int32), pages[None])
    return model.remember(group, weights, cache, output, paging), jnp.int32(0)


def initial_rows(shapes: RowShapes, hidden_size: int, dtype: np.dtype) -> Float[Array, "medium row hidden"]:
    """Return the rows of all media before any is encoded."""
    return jnp.zeros((shapes.num_media, shapes.num_rows, hidden_size), dtype)


def keep_rows(
    _: tuple[()], rows: Float[Array, "medium row hidden"], inputs: KeepInputs
) -> tuple[Float[Array, "medium row hidden"], Int[Array, ""]]:
    """Write an encoder's output among the rows of all media, and return something to wait for."""
    output, place = jax.tree.map(jnp.asarray, inputs)
    return rows.at[place].set(output.astype(rows.dtype), mode="drop"), jnp.int32(0)


def embed_media(
    model: PagedDecoder, bucket: Bucket, weights: Weights, slots: SlotState, inputs: MediaInputs, *, has_adapters: bool
) -> tuple[SlotState, Embedded]:
    """Begin a step as `embed_tokens` does, with rows of media in place of some tokens of prompts."""
    slots, embedded = embed_tokens(model, bucket, weights, slots, inputs.packed, has_adapters=has_adapters)
    hidden, numbers = embedded.inputs.hidden, jnp.asarray(inputs.numbers).reshape(-1)
    of_prompts = hidden[bucket.num_seqs :]
    rows = jnp.asarray(inputs.rows).reshape(-1, hidden.shape[1])
    seen = jnp.where((numbers != NOT_MEDIA)[:, None], rows[jnp.maximum(numbers, 0)], of_prompts)
    hidden = jnp.concatenate([hidden[: bucket.num_seqs], seen.astype(hidden.dtype)])
    return slots, embedded._replace(inputs=embedded.inputs._replace(hidden=hidden))
