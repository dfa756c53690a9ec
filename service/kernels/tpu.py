"""Attention on a TPU with JAX's ragged paged attention, which copies pages to VMEM while it computes.

An 8-bit KV cache uses tpu_kv8.py instead, and so do heads of more than 128 dimensions, for which JAX's kernel does not
compile.

JAX's kernel takes the tokens of all sequences one after another, and keys and values interleaved by head in one array,
padded to 128 dimensions; heads of 64 or fewer fill them together (ragged/joined.py). It finds a token's position from
the end of its sequence, so the padding behind a sequence counts as tokens before those of the next one:

    ours      [seq, token]   a a a .          cache   [page, position, (k0 v0 k1 v1 ...), head_dim]
                             b b . .
                             c c c c
    ragged    a a a|. b b|. . c c c c         bounds = 0, 3, 6, 12

An unsupported number of heads (3) is padded with heads of zeros (4), which no query of the model sees.

Masking is additive, so a NaN in a sequence's KV also poisons its earlier tokens, tokens whose window does not include
it, and the heads that share its register. Other sequences are safe: values past a sequence's last token are replaced
before use.

Source: Jiang et al. 2025, "Ragged Paged Attention: a high-performance and flexible LLM inference kernel for TPU".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jaxtyping import Array, DTypeLike, Float, Int, Num

from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.cache_layout import CacheLayout
from service.kernels.kv8.words import packed_words
from service.kernels.limits import TPU_LANES, tpu_cached_heads, tpu_heads_per_register
from service.kernels.paging import Paging
from service.kernels.ragged.blocks import choose_block
from service.kernels.ragged.joined import joined, joined_queries, own_parts
from service.kernels.ragged.padding import padded
from service.kernels.ragged.write import write_pairs

KVPairs = Float[Array, "page position key_and_value dim"]


@dataclass(frozen=True)
class RaggedAttention:
    """An `AttentionKernel` that reads pages in place."""

    device_kind: str = ""  # JAX's name for the chip, which determines block sizes
    ragged_attention: Callable[..., Array] = ragged_paged_attention  # replaced in tests, which have no TPU
    interpret: bool = False  # emulate the writes of pages too

    kv_head_axis: ClassVar[int] = 2  # a head's key and value are adjacent, so each device's shard has whole heads

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> KVPairs:
        num_joined = tpu_cached_heads(num_kv_heads, head_dim, jnp.dtype(dtype)) // tpu_heads_per_register(head_dim)
        return jnp.zeros((layout.num_pages, layout.page_size, 2 * num_joined, TPU_LANES), dtype)

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads | None,
        new_values: KVHeads | None,
        cache: KVPairs,
        paging: Paging,
        *,
        scoring: Scoring,
        sinks: Sinks | None = None,
    ) -> tuple[QueryHeads, KVPairs]:
        """Write the new tokens into their pages and attend over the pages in place."""
        assert sinks is None, "a model with sinks is given the reference"
        num_pages, page_size, num_vectors, dim = cache.shape
        num_seqs, width, num_kv_heads, group, head_dim = query.shape
        num_joined, per_register = num_vectors // 2, tpu_heads_per_register(head_dim)
        num_cached, cached_dim = num_joined * per_register, dim // per_register
        pages = cache
        if new_keys is not None and new_values is not None:
            with jax.named_scope("cache_update"):
                new = (padded(part, {2: num_cached, 3: cached_dim}) for part in (new_keys, new_values))
                keys, values = (joined(part, per_register) for part in new)
                pages = write_pairs(cache, _pairs(keys, values, cache.dtype), paging, interpret=self.interpret)
        with jax.named_scope("attention"):
            queries = joined_queries(padded(query, {2: num_cached, 4: cached_dim}), per_register)
            block = choose_block(
                self.device_kind,
                page_size=page_size,
                num_heads=num_joined,
                group=per_register * group,
                page_bytes=page_size * num_vectors * dim * pages.dtype.itemsize,
                context_pages=paging.page_table.shape[1],
                num_tokens=num_seqs * width,
            )
            attended = self.ragged_attention(
                queries.reshape(num_seqs * width, num_cached * group, dim),
                pages,
                jnp.where(paging.num_tokens > 0, paging.start + paging.num_tokens, 1),
                jnp.clip(paging.page_table, 0, num_pages - 1),  # a copy from outside the array would halt the chip
                _bounds(paging, width),
                jnp.array([num_seqs], jnp.int32),
                sm_scale=scoring.scale,
                sliding_window=scoring.sliding_window,
                soft_cap=scoring.soft_cap,
                num_kv_pages_per_block=block.num_pages,
                num_queries_per_block=block.num_queries,
                vmem_limit_bytes=block.vmem_bytes,
            )
            # Of padding, the kernel does not initialize the outputs. As matrices, so that XLA lays them out once.
            matrix = attended.reshape(num_seqs * width, -1)
            attended = jnp.where(paging.is_token(width).reshape(-1, 1), matrix, 0)
            by_head = attended.reshape(num_seqs, width, num_joined, per_register * group, dim)
            return own_parts(by_head, per_register)[:, :, :num_kv_heads, :, :head_dim], pages


def _bounds(paging: Paging, width: int) -> Int[Array, " bound"]:
    """Return where each sequence begins, with the padding of the one before it, and where the last one ends."""
    # The kernel prefetches the next sequence's pages before it knows whether that sequence has tokens.
    ends = jnp.maximum(paging.num_tokens, 1) + width * jnp.arange(len(paging.num_tokens), dtype=jnp.int32)
    return jnp.concatenate([jnp.zeros(1, jnp.int32), ends])


def _pairs(
    keys: Float[Array, "seq token kv_head dim"], values: Float[Array, "seq token kv_head dim"], dtype: DTypeLike
) -> Num[Array, "seq token word dim"]:
    """Return keys and values as `write_pairs` takes them: of 16 bits in words, which are the same in memory."""
    if jnp.dtype(dtype).itemsize == 2:
        return packed_words(keys.astype(dtype), values.astype(dtype))
    num_seqs, width, num_heads, dim = keys.shape
    return jnp.stack([keys, values], axis=3).reshape(num_seqs, width, 2 * num_heads, dim).astype(dtype)
