"""A step of a model in one piece, as a test wants it and no service runs it."""

from typing import Any

import jax
from jaxtyping import Array, Float, Int

from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.models.decoder import Decoder
from service.models.interface import LayerGroupInputs


def empty_caches(model: Decoder, layout: CacheLayout) -> list[Any]:
    """Return the empty cache of every group."""
    return [model.initial_cache(layout, group) for group in model.layer_groups]


def whole_step(
    model: Decoder, weights: dict[str, jax.Array], caches: list[Any], token_ids: Int[Array, "seq token"], paging: Paging
) -> tuple[Float[Array, "seq token hidden"], list[Any]]:
    """Run all groups over some tokens."""
    hidden, rotation = model.embed(weights, token_ids, paging.positions(token_ids.shape[1]))
    new_caches = []
    for group, cache in zip(model.layer_groups, caches, strict=True):
        of_group = [weights[name] for name in group.weights]
        hidden, new_cache = model.run_layer_group(group, of_group, cache, LayerGroupInputs(hidden, rotation, paging))
        new_caches.append(new_cache)
    return hidden, new_caches
