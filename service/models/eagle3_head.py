"""The forward pass of an EAGLE-3 head, over Haliax axes; see `eagle3`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import override

import haliax as hax
from jaxtyping import Array, Float, Int

from service.kernels.paging import Regions
from service.models.draft_head import DraftHead, named_tokens
from service.models.eagle3 import EMBEDDINGS, Eagle3Config, eagle3_weight_specs
from service.models.interface import Cache, Weights
from service.models.norm import normalized


@dataclass(frozen=True)
class Eagle3Head(DraftHead):
    """A head, in one dtype."""

    config: Eagle3Config

    @override
    def read(self, weights: Weights, shown: Float[Array, "token tap target"]) -> Float[Array, "token hidden"]:
        read = hax.named(shown.astype(self.decoder.dtype).reshape(len(shown), -1), ("token", "tapped"))
        out = self.multiply(read, self._named(weights), "fc", ("tapped",))
        return self.multiply.constrained(out).rearrange(("token", "embed")).array

    @override
    def go_on(
        self,
        weights: Weights,
        cache: Cache,
        token_ids: Int[Array, " token"],
        hidden: Float[Array, "token hidden"],
        regions: Regions,
    ) -> tuple[Cache, Float[Array, "token hidden"]]:
        named = self._named(weights)
        embedded = self.decoder.embedded(named, hax.named(token_ids, "token"))
        entering = normalized(named_tokens(hidden), self.config.hidden_norm, named, "hidden_norm")
        return self.run_layer(weights, cache, entering, regions, embedded)

    @override
    def likeliest(
        self, weights: Weights, hidden: Float[Array, "token hidden"], num_used: Int[Array, ""]
    ) -> Int[Array, " token"]:
        named = self._named(weights)
        states = normalized(named_tokens(hidden), self.config.decoder.final_norm, named, "final_norm")
        drafted = self.best(states, named, "unembed", num_used)
        return drafted + weights["ids"][drafted] if self.config.has_ids else drafted

    def _named(self, weights: Weights) -> Mapping[str, hax.NamedArray]:
        """Return the arrays outside the layer, by name: the embeddings are stored as their owner's are."""
        decoder = self.decoder
        own = eagle3_weight_specs(self.config, decoder.dtype, decoder.quantization, decoder.weight_dtype)
        axes = {spec.name: spec.axes for spec in own if not spec.name.startswith("layers.")}
        axes |= zip(EMBEDDINGS, (("vocab", "embed"), ("vocab",)), strict=True)
        return {name: hax.named(weights[name], each) for name, each in axes.items() if name in weights}
