"""Attention of a model whose layers have heads of different sizes: each size has a kernel of its own."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import DTypeLike

from service.kernels.attention import AttentionKernel, KVHeads, LayerCache, QueryHeads, Scoring, Sinks
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging


@dataclass(frozen=True)
class AttentionByHeadDim:
    """An `AttentionKernel` that passes each layer on to the kernel of its heads."""

    kv_head_axis: ClassVar[int] = 1  # of the caches of all kernels, on several devices
    kernels: tuple[tuple[int, AttentionKernel], ...]  # by the dimensions of a head

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> LayerCache:
        kernel = dict(self.kernels)[head_dim]
        return kernel.initial_cache(layout, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads | None,
        new_values: KVHeads | None,
        cache: LayerCache,
        paging: Paging,
        *,
        scoring: Scoring,
        sinks: Sinks | None = None,
    ) -> tuple[QueryHeads, LayerCache]:
        kernel = dict(self.kernels)[query.shape[-1]]
        return kernel.attend(query, new_keys, new_values, cache, paging, scoring=scoring, sinks=sinks)


@dataclass(frozen=True)
class TpuAttentionByHeadDim(AttentionByHeadDim):
    """The same of the kernels of TPUs, in whose caches another axis is that of heads."""

    kv_head_axis: ClassVar[int] = 2
