"""Attention on a CPU over blocks of the slots' rows, read in place."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.cache_layout import CopyKind
from service.kernels.kv import KV, as_stored
from service.kernels.paging import Paging, RowPages
from service.kernels.reference import MASKED_SCORE, is_visible
from service.kernels.rows.cache import Block, RowCache, Rows, SlotRows, write_column, write_run
from service.kernels.rows.copies import copy_pages

# The transposition of a sequence's new tokens, [token, kv_head, head_dim], to the axes of a `Block`.
RUN_AXES = ((1, 2, 0), (1, 0, 2), (1, 2, 0), (1, 2, 0))


@dataclass(frozen=True)
class RowAttention(SlotRows):
    """An `AttentionKernel` that keeps a row of positions per slot."""

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads,
        new_values: KVHeads,
        cache: RowCache,
        paging: Paging,
        *,
        scoring: Scoring,
        sinks: Sinks | None = None,
    ) -> tuple[QueryHeads, RowCache]:
        """Write the new tokens into their rows and attend over whole blocks."""
        attention = _BlockAttention(scoring, sinks)
        run = self._decode if query.shape[1] == 1 else self._prefill if len(query) == 1 else self._prefill_several
        tokens = as_stored(new_keys, new_values, cache.pages.keys.dtype)
        attended, rows = run(query, tokens, cache.rows, paging, attention=attention)
        return attended, cache._replace(rows=rows)

    def copy_pages(self, kind: CopyKind, layers: Sequence[RowCache], pages: RowPages) -> Sequence[RowCache]:
        return copy_pages(self.layout, kind, layers, pages)

    def _decode(
        self,
        query: Float[Array, "seq 1 kv_head group head_dim"],
        tokens: KV,
        cache: Rows,
        paging: Paging,
        *,
        attention: "_BlockAttention",
    ) -> tuple[Float[Array, "seq 1 kv_head group head_dim"], Rows]:
        """Attend in place: sequence `i` is in slot `i`, so each slot group's queries match its rows."""
        groups, attended = list(cache), []
        positions = jnp.where(paging.num_tokens > 0, paging.start, -1)
        spans = self.touched(paging)
        for index, (first, last) in enumerate(self.slot_spans):
            if first >= query.shape[0]:
                break
            rows = slice(first, last)
            blocks = list(cache[index])
            with jax.named_scope("cache_update"):
                for number, (begin, end) in enumerate(spans):
                    column = tokens.map(lambda new, rows=rows: new[rows, 0])
                    blocks[number] = write_column(blocks[number], column, positions[rows] - begin, end - begin)
            with jax.named_scope("attention"):
                visible = positions[rows, None, None, None]
                attended.append(attention(query[rows, 0], blocks[: len(spans)], visible))
            groups[index] = tuple(blocks)
        return jnp.concatenate(attended)[:, None], tuple(groups)

    def _prefill(
        self,
        query: Float[Array, "1 token kv_head group head_dim"],
        tokens: KV,
        cache: Rows,
        paging: Paging,
        *,
        attention: "_BlockAttention",
    ) -> tuple[Float[Array, "1 token kv_head group head_dim"], Rows]:
        """Compute one sequence in the prefill row, which contains all of its earlier tokens."""
        _, num_tokens, num_kv_heads, group_size, head_dim = query.shape
        *slots, row = cache
        blocks, spans = list(row), self.touched(paging)
        with jax.named_scope("cache_update"):
            run = tokens.map(lambda new, axes: jnp.transpose(new[0], axes), RUN_AXES)
            for number, (begin, _) in enumerate(spans):
                blocks[number] = write_run(blocks[number], run, paging.start[0] - begin, paging.num_tokens[0] > 0)
        with jax.named_scope("attention"):
            # The queries that share a KV head are consecutive, so that a single product computes all of them.
            queries = jnp.transpose(query, (0, 2, 3, 1, 4)).reshape(1, num_kv_heads, -1, head_dim)
            visible = jnp.tile(paging.positions(num_tokens)[0], group_size)[:, None]
            merged = attention(queries, blocks[: len(spans)], visible)
            attended = merged.reshape(1, num_kv_heads, group_size, num_tokens, head_dim)
        return jnp.transpose(attended, (0, 3, 1, 2, 4)), (*slots, tuple(blocks))

    def _prefill_several(
        self,
        query: QueryHeads,
        tokens: KV,
        cache: Rows,
        paging: Paging,
        *,
        attention: "_BlockAttention",
    ) -> tuple[QueryHeads, Rows]:
        """Compute sequences in their slots, which are known only on the device and looked up among the groups."""
        num_seqs, num_tokens, num_kv_heads, group_size, head_dim = query.shape
        spans = self.touched(paging)
        slots = jnp.where(paging.num_tokens > 0, paging.slots, self.layout.num_slots)
        positions = paging.positions(num_tokens)

        def write(seq: Int[Array, ""], rows: Rows) -> Rows:
            run = tokens.map(lambda new, axes: jnp.transpose(new[seq], axes), RUN_AXES)
            groups = [list(blocks) for blocks in rows]
            for number, (begin, _) in enumerate(spans):
                self.write_to_slot(groups, number, run, slot=slots[seq], start=paging.start[seq] - begin)
            return tuple(tuple(blocks) for blocks in groups)

        def attend(seq: Int[Array, ""]) -> Float[Array, "token kv_head group head_dim"]:
            contexts = [self.row_of_slot(cache, number, slots[seq]) for number in range(len(spans))]
            queries = jnp.transpose(query[seq], (1, 2, 0, 3)).reshape(num_kv_heads, -1, head_dim)
            visible = jnp.tile(positions[seq], group_size)[:, None]
            merged = attention(queries, contexts, visible).reshape(num_kv_heads, group_size, num_tokens, head_dim)
            return jnp.transpose(merged, (2, 0, 1, 3))

        # All writes precede all reads: a read between two writes would prevent XLA from updating a block in place.
        with jax.named_scope("cache_update"):
            cache = jax.lax.fori_loop(0, num_seqs, write, cache)
        with jax.named_scope("attention"):
            attended = jax.lax.map(attend, jnp.arange(num_seqs))
        return attended, cache


@dataclass(frozen=True)
class _BlockAttention:
    """Attention over separate blocks of positions, without concatenating their scores or weights.

    XLA on a CPU then fuses each block's scores, exponentials and sum into one pass, and multiplies the result in place.
    Concatenated weights would be sliced again, and so copied, before their product with the values.
    """

    scoring: Scoring
    sinks: Sinks | None = None

    def __call__(
        self,
        query: Float[Array, "*batch query head_dim"],
        blocks: Sequence[Block],
        positions: Int[Array, "*#batch #query 1"],
    ) -> Float[Array, "*batch query head_dim"]:
        """Attend from queries at the given positions to their visible positions."""
        scaled = query.astype(jnp.float32) * self.scoring.scale  # cheaper than scaling the scores
        scores, begin = [], 0
        for block in blocks:
            scores.append(self._scores(scaled, block, positions, begin))
            begin += block.keys.shape[-1]
        highest = functools.reduce(jnp.maximum, [jnp.max(part, axis=-1, keepdims=True) for part in scores])
        sinks = self._sinks_of(query)
        if sinks is not None:
            highest = jnp.maximum(highest, sinks)
        weights = [jnp.exp(part - highest) for part in scores]
        sums = [jnp.sum(part, axis=-1, keepdims=True) for part in weights]
        if sinks is not None:
            sums.append(jnp.exp(sinks - highest))
        products = [_weighted(part, block) for part, block in zip(weights, blocks, strict=True)]
        return (sum(products[1:], products[0]) / sum(sums[1:], sums[0])).astype(query.dtype)

    def _sinks_of(self, query: Float[Array, "*batch query head_dim"]) -> Float[Array, "*#batch query 1"] | None:
        """Return the sink of each query; those of a head are consecutive, one for each token."""
        if self.sinks is None:
            return None
        sinks = jnp.repeat(self.sinks.astype(jnp.float32), query.shape[-2] // self.sinks.shape[1], axis=1)
        return sinks.reshape((1,) * (query.ndim - 3) + (*sinks.shape, 1))

    def _scores(
        self,
        query: Float[Array, "*batch query head_dim"],
        block: Block,
        positions: Int[Array, "*#batch #query 1"],
        begin: int,
    ) -> Float[Array, "*batch query position"]:
        keys = block.keys if block.key_scales is None else block.keys.astype(jnp.float32)
        scores = jnp.matmul(query, keys, preferred_element_type=jnp.float32)
        if block.key_scales is not None:
            scores = scores * block.key_scales
        if self.scoring.soft_cap is not None:
            scores = self.scoring.soft_cap * jnp.tanh(scores / self.scoring.soft_cap)
        key_positions = begin + jnp.arange(block.keys.shape[-1], dtype=jnp.int32)
        return jnp.where(is_visible(positions, key_positions, self.scoring.sliding_window), scores, MASKED_SCORE)


def _weighted(weights: Float[Array, "*batch query position"], block: Block) -> Float[Array, "*batch query head_dim"]:
    """Return the weighted sum of a block's values."""
    if block.value_scales is None:
        return jnp.matmul(weights, block.values, preferred_element_type=jnp.float32)
    return jnp.matmul(weights * block.value_scales, block.values.astype(jnp.float32))
