"""A head that drafts with hidden states of its target: one layer, and the way to a token; over Haliax axes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import haliax as hax
import jax.numpy as jnp
from haliax import NamedArray
from jaxtyping import Array, Float, Int

from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Regions
from service.models.decoder import Decoder
from service.models.interface import Cache, LayerGroupInputs, Weights
from service.models.multiply import Multiply


@dataclass(frozen=True)
class DraftHead(ABC):
    """A head, in one dtype."""

    decoder: Decoder  # of its layer

    @property
    def hidden_size(self) -> int:
        """The width of the hidden states."""
        return self.decoder.hidden_size

    def initial_cache(self, layout: CacheLayout) -> Cache:
        """Return the layer's empty cache; only traced."""
        [group] = self.decoder.layer_groups
        return self.decoder.initial_cache(layout, group)

    @abstractmethod
    def read(self, weights: Weights, shown: Float[Array, "token tap target"]) -> Float[Array, "token hidden"]:
        """Return what takes the place of the layer's own result, of hidden states of the target."""

    @abstractmethod
    def go_on(
        self,
        weights: Weights,
        cache: Cache,
        token_ids: Int[Array, " token"],
        hidden: Float[Array, "token hidden"],
        regions: Regions,
    ) -> tuple[Cache, Float[Array, "token hidden"]]:
        """Run the layer.

        Args:
            weights: by name, with those of the target.
            cache: the layer's.
            token_ids: the token after each position.
            hidden: what `read` returned of the hidden states of the target at the position, or the layer's own result
                at the position before.
            regions: the positions.

        Returns:
            the cache with the positions' keys and values, and the layer's result.
        """

    @abstractmethod
    def likeliest(
        self, weights: Weights, hidden: Float[Array, "token hidden"], num_used: Int[Array, ""]
    ) -> Int[Array, " token"]:
        """Return the target's token that is likeliest after each result of the layer; of the first `num_used`."""

    def run_layer(
        self,
        weights: Weights,
        cache: Cache,
        entering: NamedArray,
        regions: Regions,
        embedded: NamedArray | None = None,
    ) -> tuple[Cache, Float[Array, "token hidden"]]:
        """Run the layer for hidden states; `embedded` is what its attention reads beside them."""
        [group] = self.decoder.layer_groups
        hidden = entering.rearrange(("token", "embed")).array
        inputs = LayerGroupInputs(
            hidden,
            self.decoder.rotations(regions.positions(len(hidden))),
            regions,
            embedded=None if embedded is None else embedded.rearrange(("token", "embed")).array,
        )
        result, cache = self.decoder.run_layer_group(group, [weights[name] for name in group.weights], cache, inputs)
        return cache, result

    def best(
        self, states: NamedArray, named: Mapping[str, NamedArray], name: str, num_used: Int[Array, ""]
    ) -> Int[Array, " token"]:
        """Return the row of a matrix whose product with each of the first states is largest."""
        spans = jnp.stack([jnp.int32(0), num_used.astype(jnp.int32)])[None]
        multiply = replace(self.multiply, spans=spans)
        logits = multiply.constrained(multiply(states, named, name, ("embed",), dtype=jnp.float32))
        return jnp.argmax(logits.rearrange(("token", "vocab")).array, axis=-1).astype(jnp.int32)

    @property
    def multiply(self) -> Multiply:
        """The products of all tokens."""
        return Multiply(self.decoder.products, self.decoder.fp8, self.decoder.mesh)


def named_tokens(hidden: Float[Array, "token hidden"]) -> NamedArray:
    """Return hidden states with the names of their axes."""
    return hax.named(hidden, ("token", "embed"))
