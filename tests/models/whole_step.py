"""A step of a model in one piece, as a test wants it and no service runs it."""

from typing import Any

import jax
from jaxtyping import Array, Float, Int

from service.kernels.paging import CacheLayout, Paging
from service.models.decoder import Decoder
from service.models.interface import StageInputs


def empty_caches(model: Decoder, layout: CacheLayout) -> list[Any]:
    """Return the empty cache of every stage."""
    return [model.initial_cache(layout, stage) for stage in model.stages]


def whole_step(
    model: Decoder, weights: dict[str, jax.Array], caches: list[Any], token_ids: Int[Array, "seq token"], paging: Paging
) -> tuple[Float[Array, "seq token hidden"], list[Any]]:
    """Run all stages over some tokens."""
    hidden, rotation = model.embed(weights, token_ids, paging.positions(token_ids.shape[1]))
    new_caches = []
    for stage, cache in zip(model.stages, caches, strict=True):
        of_stage = [weights[name] for name in stage.weights]
        hidden, new_cache = model.run_stage(stage, of_stage, cache, StageInputs(hidden, rotation, paging))
        new_caches.append(new_cache)
    return hidden, new_caches
