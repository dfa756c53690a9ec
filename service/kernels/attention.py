"""Attention over a cache: the one signature that models call.

The cache of a layer is the kernel's own affair: pages, or a row per slot. A model hands it back and forth unopened.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Array, DTypeLike, Float

from service.kernels.paging import CacheLayout, Paging, RowPages

QueryHeads = Float[Array, "seq token kv_head group head_dim"]  # a group of query heads shares a key-value head
KVHeads = Float[Array, "seq token kv_head head_dim"]
LayerCache = Any  # a pytree of arrays; of a kernel that keeps rows, a tuple: each context size, then the pages


@dataclass(frozen=True)
class Scoring:
    """What becomes of the product of a query and a key before the softmax."""

    scale: float  # multiplies it, as a rule head_dim ** -0.5
    sliding_window: int | None = None  # positions seen, the token's own included; None sees all
    soft_cap: float | None = None  # scores are squeezed into (-soft_cap, soft_cap)


@runtime_checkable
class AttentionKernel(Protocol):
    """Causal attention with grouped heads over what earlier steps have cached."""

    keeps_rows: ClassVar[bool]  # whether pages must be copied to and from a slot's row; else they are read in place
    kv_head_axis: ClassVar[int]  # of every array of a cache; devices that share a cache split this axis

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> LayerCache:
        """Return the empty cache of one layer."""
        ...

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads,
        new_values: KVHeads,
        cache: LayerCache,
        paging: Paging,
        *,
        scoring: Scoring,
    ) -> tuple[QueryHeads, LayerCache]:
        """Cache the new tokens' keys and values, and attend from each token to the positions up to its own."""
        ...

    def save(self, cache: LayerCache, pages: RowPages) -> LayerCache:
        """Copy pages out of a slot's row. Only if it keeps rows."""
        ...

    def restore(self, cache: LayerCache, pages: RowPages) -> LayerCache:
        """Copy pages into a slot's row. Only if it keeps rows."""
        ...


def num_cache_parts(layout: CacheLayout, *, keeps_rows: bool) -> int:
    """Return into how many parts a cache can be made one after the other."""
    return len(layout.context_sizes) + 1 if keeps_rows else 1


def keeps_rows(platform: str) -> bool:
    """Tell whether a platform's kernel keeps a row per slot; known before there is a layout."""
    return platform == "cpu"
