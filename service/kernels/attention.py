"""Attention over a KV cache: the interface between models and kernels.

A layer's cache is opaque to the model. The kernel chooses the layout of its pages.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Array, DTypeLike, Float

from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging

QueryHeads = Float[Array, "seq token kv_head group head_dim"]  # a group of query heads shares a key-value head
KVHeads = Float[Array, "seq token kv_head head_dim"]
Sinks = Float[Array, "kv_head group"]  # of each query head, a score that takes its share of the softmax for nothing
LayerCache = Any  # the keys and values of one layer: a pytree of arrays in the kernel's layout


@dataclass(frozen=True)
class Scoring:
    """How the product of a query and a key becomes the input of the softmax."""

    scale: float  # factor of the product, usually head_dim ** -0.5
    sliding_window: int | None = None  # visible positions, including the token's own; None for all
    soft_cap: float | None = None  # scores are squashed into (-soft_cap, soft_cap)


@runtime_checkable
class AttentionKernel(Protocol):
    """Causal grouped-query attention over cached keys and values.

    A kernel that takes no paging with `ahead` is not given one; see `service.kernels.choice`.
    """

    kv_head_axis: ClassVar[int]  # of every array in a cache; the axis that is sharded over devices

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> LayerCache:
        """Return the empty cache of one layer."""
        ...

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
        """Cache the new tokens' keys and values, and attend from each token up to the last position that it sees.

        Without new keys and values, those of the tokens are in the cache already, which stays as it is.

        Source: sinks: OpenAI 2025, arXiv:2508.10925, section 2.2; transformers `models/gpt_oss/modeling_gpt_oss.py`.
        """
        ...


@runtime_checkable
class MemoryKernel(AttentionKernel, Protocol):
    """A kernel whose cache may also hold memories: the keys and values of an encoder's output."""

    def attend_memory(self, query: QueryHeads, cache: LayerCache, memory: Paging, *, scale: float) -> QueryHeads:
        """Attend from each token to all positions of its sequence's memory; the result of padding is not used.

        Args:
            query: queries of the tokens.
            cache: the layer's cache, which stays as it is.
            memory: the pages of each sequence's memory; `start` is its length.
            scale: factor of the product of a query and a key.

        Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3 (encoder-decoder attention).
        """
        ...
