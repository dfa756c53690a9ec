"""Attention over a cache: the one signature that models call.

The cache of a layer is the kernel's own affair: pages, or a row per slot. A model hands it back and forth unopened.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Array, DTypeLike, Float, Int

from service.kernels.paging import CacheLayout, Paging

LayerCache = Any  # a pytree of arrays; of a kernel that keeps rows, a tuple: each context size, then the pages


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
        query: Float[Array, "seq token kv_head group head_dim"],
        new_keys: Float[Array, "seq token kv_head head_dim"],
        new_values: Float[Array, "seq token kv_head head_dim"],
        cache: LayerCache,
        paging: Paging,
        *,
        scale: float,  # multiplies the scores, as a rule head_dim ** -0.5
        sliding_window: int | None = None,  # positions seen, the token's own included; None sees all
        soft_cap: float | None = None,  # scores are squeezed into (-soft_cap, soft_cap)
    ) -> tuple[Float[Array, "seq token kv_head group head_dim"], LayerCache]:
        """Cache the new tokens' keys and values, and attend from each token to the positions up to its own."""
        ...

    def save(
        self, cache: LayerCache, slot: Int[Array, ""], first_page: Int[Array, ""], pages: Int[Array, " page"]
    ) -> LayerCache:
        """Copy neighbouring pages out of a slot's row; an id of `num_pages` is no page. Only if it keeps rows."""
        ...

    def restore(
        self, cache: LayerCache, slot: Int[Array, ""], first_page: Int[Array, ""], pages: Int[Array, " page"]
    ) -> LayerCache:
        """Copy pages into a slot's row. Only if it keeps rows."""
        ...


def num_cache_parts(layout: CacheLayout, *, keeps_rows: bool) -> int:
    """Return into how many parts a cache can be made one after the other."""
    return len(layout.context_sizes) + 1 if keeps_rows else 1


def keeps_rows(platform: str) -> bool:
    """Tell whether a platform's kernel keeps a row per slot; known before there is a layout."""
    return platform == "cpu"
