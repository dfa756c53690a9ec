"""The compiled functions of an encoder: features to keys and values in pages, and what attends to them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.engine.steps.step import GroupInputs, GroupOutputs, layer_inputs
from service.kernels.paging import Paging
from service.models.interface import Cache, LayerGroup, MediaEncoder, RemembersMedia, Weights


class RememberInputs(NamedTuple):
    """An encoder's output, and the pages that it is written to."""

    output: Float[Any, "position hidden"]
    pages: Int[Any, " page"]


class AttendInputs(NamedTuple):
    """The inputs of a layer group whose scores of the memory are wanted."""

    step: GroupInputs
    heads: Int[Any, "layer head"]


class AttendOutputs(NamedTuple):
    """The outputs of a layer group, and the scores of its heads."""

    group: GroupOutputs
    scores: Float[Array, "layer head prompt_token position"]


def attend_layer_group(
    model: RemembersMedia, group: LayerGroup, weights: list[jax.Array], cache: Cache, inputs: AttendInputs
) -> tuple[Cache, AttendOutputs]:
    """Run some layers over the tokens of a step, and return what heads of them attend to."""
    layers, places = layer_inputs(inputs.step, model.memory_len)
    hidden, cache, scores = model.attend_layer_group(group, weights, cache, layers, jnp.asarray(inputs.heads))
    return cache, AttendOutputs(GroupOutputs(hidden, None if places is None else hidden[places]), scores)


def encode_begin(
    encoder: MediaEncoder, weights: Weights, _: tuple[()], features: Float[Array, "frame feature"]
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
) -> tuple[tuple[()], Float[Array, "position hidden"]]:
    """Return the output."""
    return (), encoder.end(weights, jnp.asarray(hidden))


def remember(
    model: RemembersMedia, group: LayerGroup, weights: list[jax.Array], cache: Cache, inputs: RememberInputs
) -> tuple[Cache, Int[Array, ""]]:
    """Write an encoder's output into the cache of a layer group, and return something to wait for."""
    output, pages = jax.tree.map(jnp.asarray, inputs)
    paging = Paging(jnp.zeros(1, jnp.int32), jnp.full(1, len(output), jnp.int32), pages[None])
    return model.remember(group, weights, cache, output, paging), jnp.int32(0)
