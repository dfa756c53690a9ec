"""The cache on a CPU: a row of positions per slot, cut into blocks, so that no step copies keys or values.

XLA on a CPU copies every gathered or sliced operand before it multiplies, which costs more than the multiplication. So
nothing is gathered or sliced: the cache of a layer is cut at the same borders as steps, and a step reads whole blocks.

                 positions 0..255      256..1023         1024..4095
    slot  0      block [0][0]          block [0][1]      block [0][2]         decode of slot 0, context up to 1024:
    slots 1..3   block [1][0]          block [1][1]      block [1][2]         blocks [0][0] and [0][1], in place
    slots 4..15  block [2][0]          block [2][1]      block [2][2]

Keys have positions innermost, values have dimensions innermost: both products then run along memory. Pages, where
other sequences find a prefix, are copies in addition to the rows.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging, RowPages

Keys = Float[Array, "slot kv_head head_dim position"]
Values = Float[Array, "slot kv_head position head_dim"]


class Block(NamedTuple):
    """The keys and values of some slots at some positions."""

    keys: Keys
    values: Values


Rows = tuple[tuple[Block, ...], ...]  # [slot group][context block]


class Pages(NamedTuple):
    """The pages of one layer, in addition to its rows."""

    keys: Float[Array, "page kv_head head_dim position"]
    values: Float[Array, "page kv_head position head_dim"]


# For each context size the blocks of every slot group, and then the pages. Each is made when a step first reaches it.
RowCache = tuple[Any, ...]


class RowBlock(NamedTuple):
    """One slot's part of a block."""

    keys: Float[Array, "kv_head head_dim position"]
    values: Float[Array, "kv_head position head_dim"]


class Run(NamedTuple):
    """Consecutive tokens of one slot, from a position on."""

    keys: Float[Array, "kv_head head_dim token"]
    values: Float[Array, "kv_head token head_dim"]
    start: Int[Array, ""]
    slot: Int[Array, ""]


@dataclass(frozen=True)
class SlotRows:
    """The cache operations of an `AttentionKernel` that keeps a row of positions per slot."""

    layout: CacheLayout

    kv_head_axis: ClassVar[int] = 1

    @property
    def slot_spans(self) -> list[tuple[int, int]]:
        """The first slot of each slot group, and the one after its last."""
        return _spans(self.layout.slot_sizes)

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

    def save(self, cache: RowCache, pages: RowPages) -> RowCache:
        """Copy pages out of a slot's row."""
        num_pages, page_size = len(pages.ids), self.layout.page_size
        run = self._read_run(rows_of(cache), pages.slot, pages.first * page_size, num_pages * page_size)
        keys = run.keys.reshape(*run.keys.shape[:2], num_pages, -1)
        values = run.values.reshape(run.values.shape[0], num_pages, -1, run.values.shape[-1])
        *contexts, old = cache
        saved = Pages(
            keys=old.keys.at[pages.ids].set(jnp.moveaxis(keys, 2, 0), mode="drop"),
            values=old.values.at[pages.ids].set(jnp.moveaxis(values, 1, 0), mode="drop"),
        )
        return (*contexts, saved)

    def restore(self, cache: RowCache, pages: RowPages) -> RowCache:
        """Copy pages into a slot's row; positions under padding are overwritten before they are read."""
        saved: Pages = cache[-1]
        keys = jnp.moveaxis(saved.keys.at[pages.ids].get(mode="clip"), 0, 2)
        values = jnp.moveaxis(saved.values.at[pages.ids].get(mode="clip"), 0, 1)
        run = Run(
            keys=keys.reshape(*keys.shape[:2], -1),
            values=values.reshape(values.shape[0], -1, values.shape[-1]),
            start=pages.first * self.layout.page_size,
            slot=pages.slot,
        )
        groups = [list(blocks) for blocks in rows_of(cache)]
        for number, span in enumerate(_spans(self.layout.context_sizes)):
            self.write_run(groups, number, span, run)
        return with_rows(cache, groups)

    def touched(self, paging: Paging) -> list[tuple[int, int]]:
        """Return the spans of the context blocks that a step of this page table's width can reach."""
        reach = paging.page_table.shape[1] * self.layout.page_size
        return [span for span in _spans(self.layout.context_sizes) if span[0] < reach]

    def write_run(self, groups: list[list[Block]], number: int, span: tuple[int, int], run: Run) -> None:
        """Write a run of tokens into the block of its slot's group."""
        begin, _ = span
        for index, (first, last) in enumerate(self.slot_spans):
            block = groups[index][number]
            is_here = (run.slot >= first) & (run.slot < last)
            slot = jnp.clip(run.slot - first, 0, last - first - 1)
            keys = _write_window(block.keys, run.keys, slot, run.start - begin, is_here, axis=3)
            values = _write_window(block.values, run.values, slot, run.start - begin, is_here, axis=2)
            groups[index][number] = Block(keys, values)

    def row_block(self, groups: Sequence[Sequence[Block]], number: int, slot: Int[Array, ""]) -> RowBlock:
        """Return one slot's part of a context block."""
        found = None
        for index, (first, last) in enumerate(self.slot_spans):
            local = jnp.clip(slot - first, 0, last - first - 1)
            block = groups[index][number]
            row = RowBlock(_row_of(block.keys, local), _row_of(block.values, local))
            found = row if found is None else _choose((slot >= first) & (slot < last), row, found)
        assert found is not None, "a layout has at least one group of slots"
        return found

    def _read_run(self, rows: Rows, slot: Int[Array, ""], start: Int[Array, ""], length: int) -> RowBlock:
        """Return a run of positions of one slot; values past the row's end are undefined."""
        positions = start + jnp.arange(length, dtype=jnp.int32)

        def read(first_slot: int, blocks: Sequence[Block]) -> RowBlock:
            found = None
            for (begin, end), block in zip(_spans(self.layout.context_sizes), blocks, strict=True):
                run = RowBlock(
                    _read_window(block.keys, slot - first_slot, start - begin, length, axis=3),
                    _read_window(block.values, slot - first_slot, start - begin, length, axis=2),
                )
                is_here = (positions >= begin) & (positions < end)
                found = run if found is None else _choose(is_here, run, found)
            assert found is not None, "a layout has at least one block"
            return found

        group = sum(jnp.asarray(slot >= first, jnp.int32) for first, _ in self.slot_spans[1:])
        branches = [
            functools.partial(read, first, blocks) for (first, _), blocks in zip(self.slot_spans, rows, strict=True)
        ]
        return jax.lax.switch(group, branches)


def rows_of(cache: RowCache) -> Rows:
    """Return a cache's blocks by slot group and then by context."""
    return tuple(zip(*cache[:-1], strict=True))


def with_rows(cache: RowCache, rows: Sequence[Sequence[Block]]) -> RowCache:
    """Return a cache with new blocks and the same pages."""
    return (*zip(*rows, strict=True), cache[-1])


def write_column(
    block: Block,
    keys: Float[Array, "slot kv_head head_dim"],
    values: Float[Array, "slot kv_head head_dim"],
    positions: Int[Array, " slot"],
    size: int,
) -> Block:
    """Write one token per slot; a position outside the block is dropped."""
    if keys.shape[0] == 1:
        # XLA turns a scatter into one slot into an update per reader, each on a copy of the block. A window of one
        # token behind a barrier stays a single update in place.
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

    A window as long as the run is read, merged and written back, so the cost does not depend on the block's size. The
    run's padding overwrites positions after its last token only, which are written again before they are read.
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


def _read_window(
    block: Float[Array, "slot a b c"], slot: Int[Array, ""], start: Int[Array, ""], length: int, *, axis: int
) -> Float[Array, "a p q"]:
    """Read a run of tokens from one slot's row; positions outside the block are padding."""
    size = block.shape[axis]
    width = min(length, size)
    window_start = jnp.clip(start, 0, size - width)
    offsets = tuple(slot if a == 0 else (window_start if a == axis else 0) for a in range(4))
    extent = tuple(1 if a == 0 else (width if a == axis else block.shape[a]) for a in range(4))
    window = jax.lax.dynamic_slice(block, offsets, extent)[0]
    # Token t of the run lies at position start + t: read it from a window that is padded on both sides.
    padding = [(length, length) if a == axis - 1 else (0, 0) for a in range(3)]
    shift = jnp.clip(start - window_start + length, 0, length + width)
    return jax.lax.dynamic_slice_in_dim(jnp.pad(window, padding), shift, length, axis - 1)


def _choose(condition: Bool[Array, "*position"], one: RowBlock, other: RowBlock) -> RowBlock:
    """Select one of two blocks, as a whole or position by position."""
    by_key, by_value = (condition[None, None], condition[None, :, None]) if condition.ndim else (condition, condition)
    return RowBlock(jnp.where(by_key, one.keys, other.keys), jnp.where(by_value, one.values, other.values))


def _row_of(block: Float[Array, "slot a b c"], slot: Int[Array, ""]) -> Float[Array, "a b c"]:
    return jax.lax.dynamic_index_in_dim(block, slot, 0, keepdims=False)


def _spans(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(pairwise((0, *sizes)))
