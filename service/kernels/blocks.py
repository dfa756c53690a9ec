"""Attention over pages on a CPU without the C++ library: block by block, up to the longest sequence's last token.

XLA on a CPU copies what it gathers, so a whole page table of pages would cost as much as its widest sequence could.
"""

from dataclasses import dataclass
from typing import override

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from service.device.lazy_zeros import lazy_zeros
from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.cache_layout import CacheLayout
from service.kernels.kv import has_scales
from service.kernels.paging import Paging
from service.kernels.reference import MASKED_SCORE, KVPages, PagedReference, is_visible, wide_context, write_tokens

BLOCK_POSITIONS = 128

type _Softmax = tuple[
    Float[Array, "seq kv_head group token"],  # the highest score so far
    Float[Array, "seq kv_head group token"],  # the sum of weights
    Float[Array, "seq kv_head group token head_dim"],  # the weighted sum of values
]


@dataclass(frozen=True)
class BlockAttention(PagedReference):
    """An `AttentionKernel` with a running softmax; the pages are those of the reference.

    Source: Milakov & Gimelshein 2018, arXiv:1805.02867 (online softmax).
    """

    @override
    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> KVPages:
        """Return empty pages, which occupy memory from when they are written."""
        shape = (layout.num_pages, num_kv_heads, layout.page_size, head_dim)
        pages = KVPages(lazy_zeros(shape, dtype), lazy_zeros(shape, dtype))
        if not has_scales(dtype):
            return pages
        scales = (*shape[:-1], 1)
        return KVPages(*pages[:2], lazy_zeros(scales, jnp.float32), lazy_zeros(scales, jnp.float32))

    @override
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
        """Write the new tokens to their pages and attend."""
        with jax.named_scope("cache_update"):
            pages = write_tokens(cache, new_keys, new_values, paging)
        page_size, width = pages.keys.shape[2], query.shape[1]
        block_pages = max(BLOCK_POSITIONS // page_size, 1)
        missing = -paging.page_table.shape[1] % block_pages
        table = jnp.pad(paging.page_table, ((0, 0), (0, missing)))
        own, last = (places[:, :, None] for places in (paging.positions(width), paging.last_visible(width)))

        def add_block(index: Int[Array, ""], state: _Softmax) -> _Softmax:
            ids = jax.lax.dynamic_slice_in_dim(table, index * block_pages, block_pages, axis=1)
            keys, values = wide_context(pages, ids, query.dtype)
            scores = jnp.einsum("stkgd,skcd->skgtc", query, keys, preferred_element_type=jnp.float32) * scoring.scale
            if scoring.soft_cap is not None:
                scores = scoring.soft_cap * jnp.tanh(scores / scoring.soft_cap)
            key_positions = jnp.arange(keys.shape[2], dtype=jnp.int32) + index * keys.shape[2]
            visible = is_visible(own, key_positions, scoring.sliding_window, last)[:, None, None]
            return _add_scores(jnp.where(visible, scores, MASKED_SCORE), visible, values, state)

        with jax.named_scope("attention"):
            end = jnp.max(paging.start + paging.num_tokens)
            num_blocks = -(-end // (block_pages * page_size))
            _, total_weight, total = jax.lax.fori_loop(0, num_blocks, add_block, _initial(query, sinks))
            attended = total / jnp.where(total_weight > 0, total_weight, 1)[..., None]
            return jnp.moveaxis(attended, 3, 1).astype(query.dtype), pages


def _initial(query: QueryHeads, sinks: Sinks | None) -> _Softmax:
    num_seqs, num_tokens, num_kv_heads, group, head_dim = query.shape
    rows = (num_seqs, num_kv_heads, group, num_tokens)
    total = jnp.zeros((*rows, head_dim), jnp.float32)
    if sinks is None:
        return jnp.full(rows, MASKED_SCORE), jnp.zeros(rows), total
    return jnp.broadcast_to(sinks.astype(jnp.float32)[None, :, :, None], rows), jnp.ones(rows), total


def _add_scores(
    scores: Float[Array, "seq kv_head group token context"],
    visible: Array,
    values: Float[Array, "seq kv_head context head_dim"],
    state: _Softmax,
) -> _Softmax:
    highest, weight, total = state
    new_highest = jnp.maximum(highest, jnp.max(scores, axis=-1))
    kept = jnp.exp(highest - new_highest)
    weights = jnp.where(visible, jnp.exp(scores - new_highest[..., None]), 0)
    added = jnp.einsum("skgtc,skcd->skgtd", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
    return new_highest, weight * kept + jnp.sum(weights, axis=-1), total * kept[..., None] + added
