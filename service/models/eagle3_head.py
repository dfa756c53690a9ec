"""The forward pass of an EAGLE-3 head, over Haliax axes; see `eagle3`."""

from collections.abc import Mapping
from dataclasses import dataclass

import haliax as hax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Regions
from service.models.decoder import Decoder
from service.models.eagle3 import EMBEDDINGS, Eagle3Config, eagle3_weight_specs
from service.models.interface import Cache, LayerGroupInputs, Weights
from service.models.multiply import Multiply
from service.models.norm import normalized


@dataclass(frozen=True)
class Eagle3Head:
    """A head, in one dtype."""

    config: Eagle3Config
    decoder: Decoder  # of its layer

    @property
    def hidden_size(self) -> int:
        """The width of the hidden states."""
        return self.config.decoder.hidden_size

    def initial_cache(self, layout: CacheLayout) -> Cache:
        """Return the layer's empty cache; only traced."""
        [group] = self.decoder.layer_groups
        return self.decoder.initial_cache(layout, group)

    def read(self, weights: Weights, shown: Float[Array, "token tap target"]) -> Float[Array, "token hidden"]:
        """Return what the layer reads of hidden states of the target."""
        read = hax.named(shown.astype(self.decoder.dtype).reshape(len(shown), -1), ("token", "tapped"))
        out = self._multiply(read, self._named(weights), "fc", ("tapped",))
        return self._multiply.constrained(out).rearrange(("token", "embed")).array

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
            weights: by name, with the embeddings.
            cache: the layer's.
            token_ids: the token after each position.
            hidden: what `read` returned of the hidden states of the target at the position, or the layer's own result
                at the position before.
            regions: the positions.

        Returns:
            the cache with the positions' keys and values, and the layer's result.
        """
        [group] = self.decoder.layer_groups
        named = self._named(weights)
        embedded = self.decoder.embedded(named, hax.named(token_ids, "token"))
        entering = normalized(hax.named(hidden, ("token", "embed")), self.config.hidden_norm, named, "hidden_norm")
        inputs = LayerGroupInputs(
            entering.rearrange(("token", "embed")).array,
            self.decoder.rotations(regions.positions(len(token_ids))),
            regions,
            embedded=embedded.rearrange(("token", "embed")).array,
        )
        result, cache = self.decoder.run_layer_group(group, [weights[name] for name in group.weights], cache, inputs)
        return cache, result

    def likeliest(
        self, weights: Weights, hidden: Float[Array, "token hidden"], num_used: Int[Array, ""]
    ) -> Int[Array, " token"]:
        """Return the target's token that is likeliest after each result of the layer; of the first `num_used`."""
        named = self._named(weights)
        states = normalized(hax.named(hidden, ("token", "embed")), self.config.decoder.final_norm, named, "final_norm")
        multiply = Multiply(
            self.decoder.products,
            self.decoder.fp8,
            self.decoder.mesh,
            jnp.stack([jnp.int32(0), num_used.astype(jnp.int32)])[None],
        )
        logits = multiply.constrained(multiply(states, named, "unembed", ("embed",), dtype=jnp.float32))
        drafted = jnp.argmax(logits.rearrange(("token", "vocab")).array, axis=-1).astype(jnp.int32)
        return drafted + weights["ids"][drafted] if self.config.has_ids else drafted

    @property
    def _multiply(self) -> Multiply:
        return Multiply(self.decoder.products, self.decoder.fp8, self.decoder.mesh)

    def _named(self, weights: Weights) -> Mapping[str, hax.NamedArray]:
        """Return the arrays outside the layer, by name: the embeddings are stored as their owner's are."""
        decoder = self.decoder
        own = eagle3_weight_specs(self.config, decoder.dtype, decoder.quantization, decoder.weight_dtype)
        axes = {spec.name: spec.axes for spec in own if not spec.name.startswith("layers.")}
        axes |= zip(EMBEDDINGS, (("vocab", "embed"), ("vocab",)), strict=True)
        return {name: hax.named(weights[name], each) for name, each in axes.items() if name in weights}
