"""The forward pass of a layer that predicts further tokens, over Haliax axes; see `mtp`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import override

import haliax as hax
from jaxtyping import Array, Float, Int

from service.kernels.paging import Regions
from service.models.draft_head import DraftHead, named_tokens
from service.models.interface import Cache, Weights
from service.models.mtp import TARGET_NORM, MtpConfig
from service.models.norm import normalized


@dataclass(frozen=True)
class MtpHead(DraftHead):
    """Such a layer, in one dtype."""

    config: MtpConfig
    axes: Mapping[str, tuple[str, ...]]  # of the arrays outside the layer, by name

    @override
    def read(self, weights: Weights, shown: Float[Array, "token tap target"]) -> Float[Array, "token hidden"]:
        last = named_tokens(shown[:, 0].astype(self.decoder.dtype))
        return normalized(last, self.config.target_norm, self._named(weights), TARGET_NORM).array

    @override
    def go_on(
        self,
        weights: Weights,
        cache: Cache,
        token_ids: Int[Array, " token"],
        hidden: Float[Array, "token hidden"],
        regions: Regions,
    ) -> tuple[Cache, Float[Array, "token hidden"]]:
        named, norm = self._named(weights), self.config.target_norm
        embedded = self.decoder.embedded(named, hax.named(token_ids, "token"))
        of_token = normalized(embedded, norm, named, "embedding_norm")
        of_text = normalized(named_tokens(hidden), norm, named, "hidden_norm")
        both = hax.concatenate("embed", [of_token, of_text]).rename({"embed": "joined"})
        entering = self.multiply.constrained(self.multiply(both, named, "fc", ("joined",)))
        cache, result = self.run_layer(weights, cache, entering, regions)
        final = normalized(named_tokens(result), self.config.decoder.final_norm, named, "final_norm")
        return cache, final.rearrange(("token", "embed")).array

    @override
    def likeliest(
        self, weights: Weights, hidden: Float[Array, "token hidden"], num_used: Int[Array, ""]
    ) -> Int[Array, " token"]:
        table = "embed" if self.config.decoder.has_tied_embeddings else "unembed"
        return self.best(named_tokens(hidden), self._named(weights), table, num_used)

    def _named(self, weights: Weights) -> Mapping[str, hax.NamedArray]:
        return {name: hax.named(weights[name], axes) for name, axes in self.axes.items()}
