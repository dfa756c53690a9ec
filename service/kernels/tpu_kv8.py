"""Attention on a TPU over an 8-bit KV cache with a scale per token and head, or over wide heads in bfloat16.

JAX's ragged paged attention supports only a single scale for all tokens, and compiles for no more than 128 dimensions.
This kernel uses pages with as many positions as a register has lanes (or twice as many), so that a page's scales are
rows that multiply scores in place.

    words    [page, position, word, dim]                int32: keys and values of some heads, see kv8/words.py
    scales   [page, 1, key_and_value, position]         float32: k0 v0 k1 v1 ...; none of bfloat16

Queries form rows with the heads of a group side by side, as on a GPU. Heads of 64 dimensions or fewer share a register
(ragged/joined.py), and each has scales of its own. A NaN in 8 bits affects only the tokens that see
it; one in bfloat16 may also affect others of its sequence.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float32, Int32

from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.cache_layout import CacheLayout
from service.kernels.kv import as_stored, has_scales
from service.kernels.kv8.attend import Tile, attend_pages
from service.kernels.kv8.words import heads_per_word, packed_words
from service.kernels.kv8.write import write_scales
from service.kernels.limits import TPU_LANES, tpu_cached_dim, tpu_cached_heads, tpu_heads_per_register
from service.kernels.paging import Paging
from service.kernels.ragged.joined import joined, joined_queries, own_parts
from service.kernels.ragged.padding import padded, rounded_up
from service.kernels.ragged.write import write_pairs

Words = Int32[Array, "page position word dim"]
Scales = Float32[Array, "page 1 key_and_value position"]
Kv8Cache = tuple[Words, *tuple[Scales, ...]]

MOST_ROWS = 256  # query rows of a block, of each head
MOST_ROWS_OF_HEADS = 4096  # of all heads, of one register each, so that their sums and a few pages fit into 16 MiB
ROW_MULTIPLE = 16  # rows of a bfloat16 tile


@dataclass(frozen=True)
class Kv8Attention:
    """An `AttentionKernel` that reads pages of words in place."""

    kv_dtype: str  # int8, float8_e4m3fn or bfloat16
    interpret: bool = False  # emulate the kernels without a TPU, for tests

    kv_head_axis: ClassVar[int] = 2  # of words, which contain whole heads, and of scales

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> Kv8Cache:
        """Return empty pages."""
        assert jnp.dtype(dtype).name == self.kv_dtype, "the kernel was chosen for a different dtype"
        num_cached, per_register = (
            tpu_cached_heads(num_kv_heads, head_dim, jnp.dtype(dtype)),
            tpu_heads_per_register(head_dim),
        )
        num_words = num_cached // per_register // heads_per_word(dtype)
        dim = per_register * tpu_cached_dim(head_dim)
        words = jnp.zeros((layout.num_pages, layout.page_size, num_words, dim), jnp.int32)
        if not has_scales(dtype):
            return (words,)
        return words, jnp.zeros((layout.num_pages, 1, 2 * num_cached, layout.page_size), jnp.float32)

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads | None,
        new_values: KVHeads | None,
        cache: Kv8Cache,
        paging: Paging,
        *,
        scoring: Scoring,
        sinks: Sinks | None = None,
    ) -> tuple[QueryHeads, Kv8Cache]:
        """Write the new tokens into their pages and attend over the pages in place."""
        assert sinks is None, "a model with sinks is given the reference"
        if new_keys is not None and new_values is not None:
            with jax.named_scope("cache_update"):
                cache = self._written(new_keys, new_values, cache, paging)
        words, *scales = cache
        num_seqs, width, num_kv_heads, group, head_dim = query.shape
        per_register = tpu_heads_per_register(head_dim)
        num_joined, dim = words.shape[2] * heads_per_word(self.kv_dtype), words.shape[3]
        num_cached, cached_dim = num_joined * per_register, dim // per_register
        with jax.named_scope("attention"):
            group *= per_register
            num_tokens = 1 if width == 1 else _block_tokens(width, group, num_joined * dim // TPU_LANES)
            num_rows = rounded_up(num_tokens * group, ROW_MULTIPLE)
            tile = Tile(num_rows, num_tokens, group, per_register, scoring, self.kv_dtype)
            queries = joined_queries(padded(query, {2: num_cached, 4: cached_dim}), per_register)
            rows = jnp.moveaxis(queries, 2, 1).reshape(num_seqs, num_joined, width * group, dim)
            rows = padded(rows, {2: rounded_up(width * group, num_rows)})
            attended = attend_pages(rows, (words, *scales), paging, tile, interpret=self.interpret)
            by_head = attended[:, :, : width * group].reshape(num_seqs, num_joined, width, group, dim)
            unpacked = own_parts(jnp.moveaxis(by_head, 1, 2), per_register)[:, :, :num_kv_heads, :, :head_dim]
            is_token = paging.is_token(width)[:, :, None, None, None]
            return jnp.where(is_token, unpacked, 0), (words, *scales)

    def _written(self, new_keys: KVHeads, new_values: KVHeads, cache: Kv8Cache, paging: Paging) -> Kv8Cache:
        words, *scales = cache
        num_seqs, width, _, head_dim = new_keys.shape
        per_register = tpu_heads_per_register(head_dim)
        num_cached = words.shape[2] * heads_per_word(self.kv_dtype) * per_register
        heads = {2: num_cached, 3: words.shape[3] // per_register}
        new = as_stored(padded(new_keys, heads), padded(new_values, heads), jnp.dtype(self.kv_dtype))
        new_words = packed_words(joined(new.keys, per_register), joined(new.values, per_register))
        words = write_pairs(words, new_words, paging, interpret=self.interpret)
        if not scales:
            return (words,)
        vector_scales = jnp.concatenate([part for part in new[2:] if part is not None], axis=-1)
        new_scales = vector_scales.reshape(num_seqs, width, -1)
        return words, write_scales(scales[0], new_scales, paging, interpret=self.interpret)


def _block_tokens(width: int, group: int, num_registers: int) -> int:
    """Round the tokens of a block so that its rows of registers are whole tiles."""
    most = min(MOST_ROWS, MOST_ROWS_OF_HEADS // num_registers) // group // ROW_MULTIPLE * ROW_MULTIPLE
    return min(max(most, ROW_MULTIPLE), rounded_up(width, ROW_MULTIPLE))
