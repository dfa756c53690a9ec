"""Attention on a TPU: JAX's own ragged paged attention, which copies pages to the core while it computes.

That kernel takes the tokens of all sequences concatenated without padding, and keys and values in one array, neighbours
for each head, padded to 128 dimensions:

    ours      [seq, token]   a a a .          cache   [page, position, (k0 v0 k1 v1 ...), head_dim]
                             b b . .
                             . . . .   (padding: one token that sees one position)
    ragged    a a a b b .              num_tokens = 3, 2, 1

Masking is additive, so a NaN in a sequence's KV also poisons its earlier tokens, and tokens whose window does not reach
it. Other sequences are safe: values past a sequence's last token are replaced before they are used.

Source: Jiang et al. 2025, "Ragged Paged Attention: a high-performance and flexible LLM inference kernel for TPU".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jaxtyping import Array, DTypeLike, Float, Int

from service.kernels.attention import KVHeads, QueryHeads, Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.limits import TPU_LANES
from service.kernels.paging import Paging, RowPages

# Sizes of one tile step. The kernel's defaults take up to 128 pages at once, which do not fit the 16 MiB of VMEM that a
# kernel is granted on a v4 or v5e; these do. Not tuned.
POSITIONS_PER_BLOCK = 512
QUERIES_PER_BLOCK = 32  # tokens
QUERY_HEADS_PER_BLOCK = 1024  # of all tokens of a block together

KVPairs = Float[Array, "page position key_and_value dim"]
PairsCache = tuple[KVPairs]  # of one part


@dataclass(frozen=True)
class RaggedAttention:
    """An `AttentionKernel` that reads pages in place."""

    ragged_attention: Callable[..., Array] = ragged_paged_attention  # replaced only in tests, which have no TPU

    kv_head_axis: ClassVar[int] = 2  # a head's key and value are neighbours, so each device's part has whole heads

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> PairsCache:
        """Return empty pages."""
        return (jnp.zeros((layout.num_pages, layout.page_size, 2 * num_kv_heads, TPU_LANES), dtype),)

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads,
        new_values: KVHeads,
        cache: PairsCache,
        paging: Paging,
        *,
        scoring: Scoring,
    ) -> tuple[QueryHeads, PairsCache]:
        """Write the new tokens into their pages and attend over the pages in place."""
        [pages] = cache
        num_pages, page_size, _, dim = pages.shape
        num_seqs, width, num_kv_heads, group, head_dim = query.shape
        with jax.named_scope("cache_update"):
            pages = _write(pages, new_keys, new_values, paging)
        with jax.named_scope("attention"):
            ragged = _Ragged(paging, width)
            padded = _pad_last(query.reshape(num_seqs, width, num_kv_heads * group, head_dim), dim)
            context_pages = paging.page_table.shape[1]
            attended = self.ragged_attention(
                ragged.pack(padded),
                pages,
                jnp.where(paging.num_tokens > 0, paging.start + paging.num_tokens, 1),
                jnp.clip(paging.page_table, 0, num_pages - 1),  # a copy from outside the array would halt the chip
                ragged.bounds,
                jnp.array([num_seqs], jnp.int32),
                sm_scale=scoring.scale,
                sliding_window=scoring.sliding_window,
                soft_cap=scoring.soft_cap,
                num_kv_pages_per_block=min(context_pages, max(POSITIONS_PER_BLOCK // page_size, 1)),
                num_queries_per_block=min(
                    QUERIES_PER_BLOCK, max(QUERY_HEADS_PER_BLOCK // (num_kv_heads * group), 1), num_seqs * width
                ),
            )
            unpacked = ragged.unpack(attended)[..., :head_dim].reshape(query.shape)
            # The kernel does not initialize the outputs of padding.
            is_token = paging.is_token(width)[:, :, None, None, None]
            return jnp.where(is_token, unpacked, 0), (pages,)

    def save(self, layers: Sequence[PairsCache], pages: RowPages) -> Sequence[PairsCache]:
        """Return the caches as they are: pages are read in place."""
        return layers

    def restore(self, layers: Sequence[PairsCache], pages: RowPages) -> Sequence[PairsCache]:
        """Return the caches as they are: pages are read in place."""
        return layers


class _Ragged:
    """The index of each token of a padded step among the concatenated tokens."""

    def __init__(self, paging: Paging, width: int) -> None:
        self.num_seqs, self.width = len(paging.num_tokens), width
        # The kernel prefetches the next sequence's pages before it knows whether that sequence has tokens.
        counts = jnp.maximum(paging.num_tokens, 1)
        self.bounds: Int[Array, " bound"] = jnp.concatenate(
            [jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)]
        )
        tokens = jnp.arange(width, dtype=jnp.int32)[None, :]
        self._places = self.bounds[:-1, None] + jnp.minimum(tokens, counts[:, None] - 1)
        self._drops = jnp.where(tokens < counts[:, None], self._places, self.num_seqs * width)

    @property
    def _is_packed(self) -> bool:
        """Whether padding can only be at the end: there is one sequence, or each has one token."""
        return self.num_seqs == 1 or self.width == 1

    def pack(self, padded: Float[Array, "seq token head dim"]) -> Float[Array, "place head dim"]:
        """Return the tokens without the padding between them."""
        flat = padded.reshape(self.num_seqs * self.width, *padded.shape[2:])
        if self._is_packed:
            return flat
        return jnp.zeros_like(flat).at[self._drops.reshape(-1)].set(flat, mode="drop")

    def unpack(self, flat: Float[Array, "place head dim"]) -> Float[Array, "seq token head dim"]:
        """Return the tokens in their padded places; the values of padding are undefined."""
        if self._is_packed:
            return flat.reshape(self.num_seqs, self.width, *flat.shape[1:])
        return flat[self._places]


def _write(pages: KVPairs, new_keys: KVHeads, new_values: KVHeads, paging: Paging) -> KVPairs:
    num_pages, page_size, num_pairs, dim = pages.shape
    pairs = jnp.stack([new_keys, new_values], axis=3)  # [seq, token, kv_head, key or value, head_dim]
    pairs = _pad_last(pairs.reshape(*new_keys.shape[:2], num_pairs, -1), dim).astype(pages.dtype)
    page_ids, offsets = paging.destinations(new_keys.shape[1], num_pages=num_pages, page_size=page_size)
    return pages.at[page_ids, offsets].set(pairs, mode="drop")


def _pad_last(x: Float[Array, "..."], size: int) -> Float[Array, "..."]:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
