"""A head as what drafts: it reads the hidden states that its target's steps have kept."""

from typing import override

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.engine.shapes import Bucket, EngineShapes
from service.engine.steps.draft import Drafting, Lag, Tokens, draft_shapes
from service.engine.steps.features import features_of
from service.engine.steps.inputs import step_inputs
from service.engine.steps.sharding import Placement, placement_of
from service.models.draft_head import DraftHead
from service.models.interface import Cache, Weights


def lag_of_head(shapes: EngineShapes) -> Lag:
    """Return where a head is: it reads a hidden state with the token after it.

    What it drafted from results of its own is read anew, from the hidden states of the target that verified it.
    """
    return Lag(shift=1, most_behind=shapes.num_drafts)


class HeadDrafting(Drafting):
    """A head beside its target."""

    def __init__(self, head: DraftHead, shapes: EngineShapes) -> None:
        """Trace nothing yet."""
        self._head, self._shapes = head, shapes

    @property
    @override
    def lag(self) -> Lag:
        return lag_of_head(self._shapes)

    @property
    @override
    def hidden_size(self) -> int:
        return self._head.hidden_size

    @property
    @override
    def dtype(self) -> np.dtype:
        return self._head.decoder.dtype

    @property
    @override
    def place(self) -> Placement:
        return placement_of(self._head.decoder)

    @override
    def make_caches(self, shapes: EngineShapes) -> tuple[Cache, ...]:
        return (self._head.initial_cache(draft_shapes(shapes).layout),)

    @override
    def go_on(
        self, bucket: Bucket, weights: Weights, caches: tuple[Cache, ...], tokens: Tokens
    ) -> tuple[tuple[Cache, ...], Float[Array, "token hidden"]]:
        assert tokens.features is not None, "a head is given the features of its target"
        [cache], features = caches, tokens.features
        step = step_inputs(tokens.inputs.packed, tokens.inputs.page_table, bucket, has_adapters=False)
        token_ids = jnp.concatenate([tokens.of_slots, step.token_ids.reshape(-1)])

        def of_target() -> Float[Array, "token hidden"]:
            return self._head.read(weights, features_of(features, step.regions, len(token_ids)))

        before = tokens.before
        hidden = of_target() if before is None else jax.lax.cond(tokens.has_features, of_target, lambda: before)
        cache, result = self._head.go_on(weights, cache, token_ids, hidden, step.regions)
        return (cache,), result

    @override
    def likeliest(
        self, weights: Weights, hidden: Float[Array, "token hidden"], num_used: Int[Array, ""]
    ) -> Int[Array, " token"]:
        return self._head.likeliest(weights, hidden, num_used)
