"""Reference attention over pages, slow and simple: the oracle for every other kernel."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Num

from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.cache_layout import CacheLayout
from service.kernels.kv import KV, as_stored, has_scales
from service.kernels.paging import Paging

# Finite, so that a padded sequence, whose positions are all masked, stays free of NaN.
MASKED_SCORE = -1e30


# The keys and values of one layer, page by page: [page, kv_head, position, head_dim], scales with 1 for head_dim.
KVPages = KV


@dataclass(frozen=True)
class PagedReference:
    """A `MemoryKernel` that gathers each sequence's pages into a contiguous context."""

    kv_head_axis: ClassVar[int] = 1

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> KVPages:
        """Return empty pages."""
        shape = (layout.num_pages, num_kv_heads, layout.page_size, head_dim)
        pages = KVPages(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
        if not has_scales(dtype):
            return pages
        scales = jnp.zeros((*shape[:-1], 1), jnp.float32)
        return KVPages(*pages[:2], scales, jnp.zeros_like(scales))

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads | None,
        new_values: KVHeads | None,
        cache: KVPages,
        paging: Paging,
        *,
        scoring: Scoring,
        sinks: Sinks | None = None,
    ) -> tuple[QueryHeads, KVPages]:
        """Write the new tokens to their pages, gather the context and attend.

        Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1; grouped heads: Ainslie et al. 2023,
        arXiv:2305.13245; soft cap: Gemma Team 2024, arXiv:2408.00118.
        """
        with jax.named_scope("cache_update"):
            pages = write_tokens(cache, new_keys, new_values, paging)
        with jax.named_scope("attention"):
            keys, values = wide_context(pages, paging.page_table, query.dtype)
            scores = jnp.einsum("stkgd,skcd->skgtc", query, keys, preferred_element_type=jnp.float32) * scoring.scale
            if scoring.soft_cap is not None:
                scores = scoring.soft_cap * jnp.tanh(scores / scoring.soft_cap)
            width, key_positions = query.shape[1], jnp.arange(keys.shape[2], dtype=jnp.int32)
            own, last = paging.positions(width)[:, :, None], paging.last_visible(width)[:, :, None]
            visible = is_visible(own, key_positions, scoring.sliding_window, last)
            scores = jnp.where(visible[:, None, None], scores, MASKED_SCORE)
            weights = _softmax(scores, sinks)
            return jnp.einsum("skgtc,skcd->stkgd", weights.astype(values.dtype), values), pages

    def attend_memory(self, query: QueryHeads, cache: KVPages, memory: Paging, *, scale: float) -> QueryHeads:
        """Gather each sequence's memory and attend to all of it."""
        with jax.named_scope("memory_attention"):
            keys, values = wide_context(cache, memory.page_table, query.dtype)
            scores = jnp.einsum("stkgd,skcd->skgtc", query, keys, preferred_element_type=jnp.float32) * scale
            is_memory = jnp.arange(keys.shape[2], dtype=jnp.int32)[None, :] < memory.start[:, None]
            weights = jax.nn.softmax(jnp.where(is_memory[:, None, None, None], scores, MASKED_SCORE), axis=-1)
            return jnp.einsum("skgtc,skcd->stkgd", weights.astype(values.dtype), values)


def _softmax(
    scores: Float[Array, "seq kv_head group token context"], sinks: Sinks | None
) -> Float[Array, "seq kv_head group token context"]:
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    column = jnp.broadcast_to(sinks.astype(scores.dtype)[None, :, :, None, None], (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, column], axis=-1), axis=-1)[..., :-1]


def is_visible(
    query_positions: Int[Array, "*batch 1"],
    key_positions: Int[Array, " context"],
    sliding_window: int | None,
    last: Int[Array, "*batch 1"] | None = None,
) -> Bool[Array, "*batch context"]:
    """Return which positions a token sees: those within its window, up to `last`, or to its own.

    Source: sliding window: Jiang et al. 2023, arXiv:2310.06825.
    """
    key_positions = key_positions.reshape((1,) * (query_positions.ndim - 1) + key_positions.shape)
    visible = key_positions <= (query_positions if last is None else last)
    if sliding_window is not None:
        visible &= key_positions > query_positions - sliding_window
    return visible


def write_tokens(pages: KVPages, new_keys: KVHeads | None, new_values: KVHeads | None, paging: Paging) -> KVPages:
    """Write each new token's keys and values to its page, dropping padding; without any, return the pages."""
    if new_keys is None or new_values is None:
        return pages
    return pages.map(functools.partial(_write, paging=paging), as_stored(new_keys, new_values, pages.keys.dtype))


def wide_context(
    pages: KVPages, page_ids: Int[Array, "seq page"], dtype: DTypeLike
) -> tuple[Float[Array, "seq kv_head context head_dim"], Float[Array, "seq kv_head context head_dim"]]:
    """Return the keys and values of some pages of each sequence, in a dtype of activations."""
    context = pages.map(functools.partial(_read, page_ids=page_ids))
    if context.key_scales is None or context.value_scales is None:
        return context.keys.astype(dtype), context.values.astype(dtype)
    keys, values = context.keys.astype(jnp.float32), context.values.astype(jnp.float32)
    return (keys * context.key_scales).astype(dtype), (values * context.value_scales).astype(dtype)


def _write(
    pages: Num[Array, "page kv_head position head_dim"], new: Num[Array, "seq token kv_head head_dim"], paging: Paging
) -> Num[Array, "page kv_head position head_dim"]:
    num_pages, _, page_size, _ = pages.shape
    page_ids, offsets = paging.destinations(new.shape[1], num_pages=num_pages, page_size=page_size)
    return pages.at[page_ids, :, offsets].set(new.astype(pages.dtype), mode="drop")


def _read(
    pages: Num[Array, "all_page kv_head position head_dim"], page_ids: Int[Array, "seq page"]
) -> Num[Array, "seq kv_head context head_dim"]:
    """Gather pages of each sequence into a contiguous context."""
    gathered = pages[page_ids]  # [seq, page, kv_head, position, head_dim]
    by_head = jnp.moveaxis(gathered, 2, 1)
    return by_head.reshape(*by_head.shape[:2], -1, pages.shape[-1])
