"""Attention on a TPU with JAX's ragged paged attention, which copies pages to VMEM while it computes.

An 8-bit KV cache uses tpu_kv8.py instead, and so do heads of more than 128 dimensions, for which JAX's kernel does not
compile.

JAX's kernel takes the tokens of all sequences concatenated without padding, and keys and values interleaved by head in
one array, padded to 128 dimensions; heads of 64 or fewer fill them together (ragged/joined.py):

    ours      [seq, token]   a a a .          cache   [page, position, (k0 v0 k1 v1 ...), head_dim]
                             b b . .
                             . . . .   (padding: one token that sees one position)
    ragged    a a a b b .              num_tokens = 3, 2, 1

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
from jaxtyping import Array, DTypeLike, Float, Int

from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.cache_layout import CacheLayout
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
                pairs = jnp.stack([joined(part, per_register) for part in new], axis=3)
                pairs = pairs.reshape(num_seqs, width, num_vectors, dim).astype(cache.dtype)
                pages = write_pairs(cache, pairs, paging, interpret=self.interpret)
        with jax.named_scope("attention"):
            ragged = _Ragged(paging, width)
            rows = joined_queries(padded(query, {2: num_cached, 4: cached_dim}), per_register)
            rows = rows.reshape(num_seqs, width, num_cached * group, dim)
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
                ragged.pack(rows),
                pages,
                jnp.where(paging.num_tokens > 0, paging.start + paging.num_tokens, 1),
                jnp.clip(paging.page_table, 0, num_pages - 1),  # a copy from outside the array would halt the chip
                ragged.bounds,
                jnp.array([num_seqs], jnp.int32),
                sm_scale=scoring.scale,
                sliding_window=scoring.sliding_window,
                soft_cap=scoring.soft_cap,
                num_kv_pages_per_block=block.num_pages,
                num_queries_per_block=block.num_queries,
                vmem_limit_bytes=block.vmem_bytes,
            )
            by_head = ragged.unpack(attended).reshape(num_seqs, width, num_joined, per_register * group, dim)
            unpacked = own_parts(by_head, per_register)[:, :, :num_kv_heads, :, :head_dim]
            # The kernel does not initialize the outputs of padding.
            is_token = paging.is_token(width)[:, :, None, None, None]
            return jnp.where(is_token, unpacked, 0), pages


class _Ragged:
    """Maps the tokens of a padded step to concatenated tokens."""

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
        """Whether there is no padding between tokens: there is one sequence, or each has one token."""
        return self.num_seqs == 1 or self.width == 1

    def pack(self, padded: Float[Array, "seq token head dim"]) -> Float[Array, "place head dim"]:
        """Remove the padding between tokens."""
        flat = padded.reshape(self.num_seqs * self.width, *padded.shape[2:])
        if self._is_packed:
            return flat
        return jnp.zeros_like(flat).at[self._drops.reshape(-1)].set(flat, mode="drop")

    def unpack(self, flat: Float[Array, "place head dim"]) -> Float[Array, "seq token head dim"]:
        """Insert padding between tokens, with undefined values."""
        if self._is_packed:
            return flat.reshape(self.num_seqs, self.width, *flat.shape[1:])
        return flat[self._places]
