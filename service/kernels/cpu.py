"""Attention on a CPU: a row of positions per slot, cut into blocks so that no step copies what it does not need.

XLA on a CPU copies every gathered or sliced operand before it multiplies, which costs more than the multiplication. So
nothing is gathered or sliced: the cache of a layer is cut exactly where steps are cut, and a step reads whole blocks.

                 positions 0..255      256..1023         1024..4095
    slot  0      block [0][0]          block [0][1]      block [0][2]         decode of slot 0, context up to 1024:
    slots 1..3   block [1][0]          block [1][1]      block [1][2]         blocks [0][0] and [0][1], in place
    slots 4..15  block [2][0]          block [2][1]      block [2][2]

Keys lie with positions innermost, values with dimensions innermost: both products then run along memory. Pages, which
others may find, are copies beside the rows.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from service.kernels.attention import KVHeads, QueryHeads, Scoring
from service.kernels.paging import CacheLayout, Paging, RowPages
from service.kernels.reference import MASKED_SCORE, is_visible

Keys = Float[Array, "slot kv_head head_dim position"]
Values = Float[Array, "slot kv_head position head_dim"]


class Block(NamedTuple):
    """The keys and values of some slots at some positions."""

    keys: Keys
    values: Values


Rows = tuple[tuple[Block, ...], ...]  # [slot group][context block]


class Pages(NamedTuple):
    """The pages of one layer, beside its rows."""

    keys: Float[Array, "page kv_head head_dim position"]
    values: Float[Array, "page kv_head position head_dim"]


# The blocks of every slot group for one context size after the other, and then the pages: memory that no step has
# reached yet need not be there.
RowCache = tuple[Any, ...]


@dataclass(frozen=True)
class RowAttention:
    """An `AttentionKernel` that keeps a row of positions per slot."""

    layout: CacheLayout

    keeps_rows: ClassVar[bool] = True
    kv_head_axis: ClassVar[int] = 1

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> RowCache:
        """Return empty rows and pages."""

        def empty(number: int, num_positions: int) -> Block:
            keys = jnp.zeros((number, num_kv_heads, head_dim, num_positions), dtype)
            return Block(keys, jnp.zeros((number, num_kv_heads, num_positions, head_dim), dtype))

        contexts = tuple(
            tuple(empty(last - first, end - begin) for first, last in _spans(layout.slot_sizes))
            for begin, end in _spans(layout.context_sizes)
        )
        return (*contexts, Pages(*empty(layout.num_pages, layout.page_size)))

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads,
        new_values: KVHeads,
        cache: RowCache,
        paging: Paging,
        *,
        scoring: Scoring,
    ) -> tuple[QueryHeads, RowCache]:
        """Write the new tokens into their rows and attend over whole blocks."""
        attention = _BlockAttention(scoring)
        run = self._decode if query.shape[1] == 1 else self._prefill
        attended, rows = run(query, new_keys, new_values, _rows(cache), paging, attention=attention)
        return attended, (*zip(*rows, strict=True), cache[-1])

    def save(self, cache: RowCache, pages: RowPages) -> RowCache:
        """Copy pages out of a slot's row."""
        num_pages, page_size = len(pages.ids), self.layout.page_size
        run = self._read_row(_rows(cache), pages.slot, pages.first * page_size, num_pages * page_size)
        keys = run.keys.reshape(*run.keys.shape[:2], num_pages, -1)
        values = run.values.reshape(run.values.shape[0], num_pages, -1, run.values.shape[-1])
        *contexts, old = cache
        saved = Pages(
            keys=old.keys.at[pages.ids].set(jnp.moveaxis(keys, 2, 0), mode="drop"),
            values=old.values.at[pages.ids].set(jnp.moveaxis(values, 1, 0), mode="drop"),
        )
        return (*contexts, saved)

    def restore(self, cache: RowCache, pages: RowPages) -> RowCache:
        """Copy pages into a slot's row; what an absent page puts there is written again before it is read."""
        *contexts, saved = cache
        keys = jnp.moveaxis(saved.keys.at[pages.ids].get(mode="clip"), 0, 2)
        values = jnp.moveaxis(saved.values.at[pages.ids].get(mode="clip"), 0, 1)
        run = _Run(
            keys=keys.reshape(*keys.shape[:2], -1),
            values=values.reshape(values.shape[0], -1, values.shape[-1]),
            start=pages.first * self.layout.page_size,
            slot=pages.slot,
        )
        groups = [list(blocks) for blocks in zip(*contexts, strict=True)]
        for number, span in enumerate(_spans(self.layout.context_sizes)):
            self._write_run(groups, number, span, run)
        return (*zip(*groups, strict=True), saved)

    def _decode(
        self,
        query: Float[Array, "seq 1 kv_head group head_dim"],
        new_keys: Float[Array, "seq 1 kv_head head_dim"],
        new_values: Float[Array, "seq 1 kv_head head_dim"],
        cache: Rows,
        paging: Paging,
        *,
        attention: "_BlockAttention",
    ) -> tuple[Float[Array, "seq 1 kv_head group head_dim"], Rows]:
        """Row `i` is slot `i`, so each group of slots meets its rows in place."""
        groups, attended = list(cache), []
        positions = jnp.where(paging.num_tokens > 0, paging.start, -1)
        spans = self._touched(paging)
        for index, (first, last) in enumerate(_spans(self.layout.slot_sizes)):
            if first >= query.shape[0]:
                break
            rows = slice(first, last)
            blocks = list(cache[index])
            with jax.named_scope("cache_update"):
                for number, (begin, end) in enumerate(spans):
                    blocks[number] = _write_column(
                        blocks[number], new_keys[rows, 0], new_values[rows, 0], positions[rows] - begin, end - begin
                    )
            with jax.named_scope("attention"):
                visible = positions[rows, None, None, None]
                attended.append(attention(query[rows, 0], blocks[: len(spans)], visible))
            groups[index] = tuple(blocks)
        return jnp.concatenate(attended)[:, None], tuple(groups)

    def _prefill(
        self,
        query: Float[Array, "seq token kv_head group head_dim"],
        new_keys: Float[Array, "seq token kv_head head_dim"],
        new_values: Float[Array, "seq token kv_head head_dim"],
        cache: Rows,
        paging: Paging,
        *,
        attention: "_BlockAttention",
    ) -> tuple[Float[Array, "seq token kv_head group head_dim"], Rows]:
        """Rows are few and their slots known only on the device: each is found among the groups, chunk by chunk."""
        attended = []
        for row in range(query.shape[0]):
            run = _Run(
                keys=jnp.transpose(new_keys[row], (1, 2, 0)),
                values=jnp.transpose(new_values[row], (1, 0, 2)),
                start=paging.start[row],
                slot=jnp.where(paging.num_tokens[row] > 0, paging.slots[row], self.layout.num_slots),
            )
            groups = [list(blocks) for blocks in cache]
            spans = self._touched(paging)
            with jax.named_scope("cache_update"):
                contexts = [self._write_run(groups, number, span, run) for number, span in enumerate(spans)]
            with jax.named_scope("attention"):
                # The queries that share a key-value head lie behind each other, so that one product serves them all.
                num_tokens, num_kv_heads, group_size, head_dim = query.shape[1:]
                queries = jnp.transpose(query[row], (1, 2, 0, 3)).reshape(num_kv_heads, -1, head_dim)
                visible = jnp.tile(paging.positions(num_tokens)[row], group_size)[:, None]
                merged = attention(queries, contexts, visible).reshape(num_kv_heads, group_size, num_tokens, head_dim)
            attended.append(jnp.transpose(merged, (2, 0, 1, 3)))
            cache = tuple(tuple(blocks) for blocks in groups)
        return jnp.stack(attended), cache

    def _write_run(self, groups: list[list[Block]], number: int, span: tuple[int, int], run: "_Run") -> "RowBlock":
        """Put a run of tokens into the block of its slot's group, and return that slot's part of the block."""
        begin, _ = span
        context = None
        for index, (first, last) in enumerate(_spans(self.layout.slot_sizes)):
            block = groups[index][number]
            is_here = (run.slot >= first) & (run.slot < last)
            slot = jnp.clip(run.slot - first, 0, last - first - 1)
            keys = _write_window(block.keys, run.keys, slot, run.start - begin, is_here, axis=3)
            values = _write_window(block.values, run.values, slot, run.start - begin, is_here, axis=2)
            groups[index][number] = Block(keys, values)
            row = RowBlock(_row_of(keys, slot), _row_of(values, slot))
            context = row if context is None else _choose(is_here, row, context)
        assert context is not None, "a layout has at least one group of slots"
        return context

    def _read_row(self, rows: Rows, slot: Int[Array, ""], start: Int[Array, ""], length: int) -> "RowBlock":
        """Return a run of positions of one slot; what lies past the row's end is not meant."""
        parts = []
        for number in range(len(self.layout.context_sizes)):
            part = None
            for index, (first, last) in enumerate(_spans(self.layout.slot_sizes)):
                local = jnp.clip(slot - first, 0, last - first - 1)
                block = rows[index][number]
                row = RowBlock(_row_of(block.keys, local), _row_of(block.values, local))
                part = row if part is None else _choose((slot >= first) & (slot < last), row, part)
            parts.append(part)
        keys = jnp.concatenate([part.keys for part in parts], axis=2)
        values = jnp.concatenate([part.values for part in parts], axis=1)
        # A run may reach past the end by what pads it; reading from a longer row keeps it in its place.
        keys, values = jnp.pad(keys, ((0, 0), (0, 0), (0, length))), jnp.pad(values, ((0, 0), (0, length), (0, 0)))
        return RowBlock(
            jax.lax.dynamic_slice_in_dim(keys, start, length, 2), jax.lax.dynamic_slice_in_dim(values, start, length, 1)
        )

    def _touched(self, paging: Paging) -> list[tuple[int, int]]:
        """Return the context blocks that a step of this page table's width can reach."""
        reach = paging.page_table.shape[1] * self.layout.page_size
        return [span for span in _spans(self.layout.context_sizes) if span[0] < reach]


class RowBlock(NamedTuple):
    """One slot's part of a block."""

    keys: Float[Array, "kv_head head_dim position"]
    values: Float[Array, "kv_head position head_dim"]


class _Run(NamedTuple):
    keys: Float[Array, "kv_head head_dim token"]
    values: Float[Array, "kv_head token head_dim"]
    start: Int[Array, ""]
    slot: Int[Array, ""]


@dataclass(frozen=True)
class _BlockAttention:
    """Attention over blocks of positions that stay where they are: neither scores nor weights are ever joined.

    XLA on a CPU then makes one pass of each block's scores, exponentials and sum, and multiplies what comes out of it
    in place; joined weights would be cut again, and copied, before they meet the values.
    """

    scoring: Scoring

    def __call__(
        self,
        query: Float[Array, "*batch query head_dim"],
        blocks: "Sequence[Block | RowBlock]",
        positions: Int[Array, "*#batch #query 1"],
    ) -> Float[Array, "*batch query head_dim"]:
        """Attend from queries at some positions to the positions that each may see."""
        scaled = query.astype(jnp.float32) * self.scoring.scale  # fewer numbers than there are scores
        scores, begin = [], 0
        for block in blocks:
            scores.append(self._scores(scaled, block.keys, positions, begin))
            begin += block.keys.shape[-1]
        highest = functools.reduce(jnp.maximum, [jnp.max(part, axis=-1, keepdims=True) for part in scores])
        weights = [jnp.exp(part - highest) for part in scores]
        sums = [jnp.sum(part, axis=-1, keepdims=True) for part in weights]
        products = [jnp.matmul(part, block.values) for part, block in zip(weights, blocks, strict=True)]
        return (sum(products[1:], products[0]) / sum(sums[1:], sums[0])).astype(query.dtype)

    def _scores(
        self,
        query: Float[Array, "*batch query head_dim"],
        keys: Float[Array, "*batch head_dim position"],
        positions: Int[Array, "*#batch #query 1"],
        begin: int,
    ) -> Float[Array, "*batch query position"]:
        scores = jnp.matmul(query, keys, preferred_element_type=jnp.float32)
        if self.scoring.soft_cap is not None:
            scores = self.scoring.soft_cap * jnp.tanh(scores / self.scoring.soft_cap)
        key_positions = begin + jnp.arange(keys.shape[-1], dtype=jnp.int32)
        return jnp.where(is_visible(positions, key_positions, self.scoring.sliding_window), scores, MASKED_SCORE)


def _write_column(
    block: Block,
    keys: Float[Array, "slot kv_head head_dim"],
    values: Float[Array, "slot kv_head head_dim"],
    positions: Int[Array, " slot"],
    size: int,
) -> Block:
    """Write one token per slot; a position outside the block is dropped."""
    if keys.shape[0] == 1:
        # XLA turns a scatter to one row into updates that it makes once for each reader, each on a copy of the block;
        # a window of one token behind a barrier stays one update in place.
        slot, is_here = jnp.zeros((), jnp.int32), positions[0] >= 0
        written = Block(
            _write_window(block.keys, keys[0, :, :, None], slot, positions[0], is_here, axis=3),
            _write_window(block.values, values[0, :, None], slot, positions[0], is_here, axis=2),
        )
        return jax.lax.optimization_barrier(written)
    rows = jnp.arange(keys.shape[0], dtype=jnp.int32)
    inside = jnp.where((positions >= 0) & (positions < size), positions, size)
    return Block(
        block.keys.at[rows, :, :, inside].set(keys.astype(block.keys.dtype), mode="drop"),
        block.values.at[rows, :, inside].set(values.astype(block.values.dtype), mode="drop"),
    )


def _write_window(
    block: Float[Array, "slot a b c"],
    chunk: Float[Array, "a p q"],
    slot: Int[Array, ""],
    start: Int[Array, ""],
    is_here: Array,
    *,
    axis: int,
) -> Float[Array, "slot a b c"]:
    """Write a run of tokens into one slot's row, as far as it lies within the block.

    A window as long as the run is read, mixed and written back, so the cost does not depend on the block's size.
    What the run's padding overwrites lies behind its last token, where nothing is read before it is written again.
    """
    width, size = chunk.shape[axis - 1], block.shape[axis]
    length = min(width, size)
    window_start = jnp.clip(start, 0, size - length)
    offsets = tuple(slot if a == 0 else (window_start if a == axis else 0) for a in range(4))
    extent = tuple(1 if a == 0 else (length if a == axis else block.shape[a]) for a in range(4))
    old = jax.lax.dynamic_slice(block, offsets, extent)
    # Token t of the run belongs to position start + t: read it from a run that is padded on both sides.
    padding = [(width, width) if a == axis - 1 else (0, 0) for a in range(3)]
    shift = jnp.clip(window_start - start + width, 0, 3 * width - length)
    run = jax.lax.dynamic_slice_in_dim(jnp.pad(chunk, padding), shift, length, axis - 1)[None]
    positions = window_start + jnp.arange(length, dtype=jnp.int32)
    is_new = is_here & (positions >= start) & (positions < start + width)
    is_new = is_new.reshape([-1 if a == axis else 1 for a in range(4)])
    return jax.lax.dynamic_update_slice(block, jnp.where(is_new, run.astype(block.dtype), old), offsets)


def _choose(condition: Array, one: RowBlock, other: RowBlock) -> RowBlock:
    return RowBlock(jnp.where(condition, one.keys, other.keys), jnp.where(condition, one.values, other.values))


def _row_of(block: Float[Array, "slot a b c"], slot: Int[Array, ""]) -> Float[Array, "a b c"]:
    return jax.lax.dynamic_index_in_dim(block, slot, 0, keepdims=False)


def _rows(cache: RowCache) -> Rows:
    return tuple(zip(*cache[:-1], strict=True))


def _spans(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(pairwise((0, *sizes)))
