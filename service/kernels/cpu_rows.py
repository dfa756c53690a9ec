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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int, Num

from service.kernels.cache_layout import CacheLayout
from service.kernels.kv import KV, has_scales
from service.kernels.paging import Paging, RowPages

# The keys and values of some slots at some positions: keys [slot, kv_head, head_dim, position], values
# [slot, kv_head, position, head_dim], scales [slot, kv_head, 1, position]; of one slot without the first axis.
Block = KV
Pages = KV  # of one layer, in addition to its rows, with pages instead of slots
POSITION_AXES = (3, 2, 3, 3)  # of a block

Rows = tuple[tuple[Block, ...], ...]  # [slot group][context block]

# For each context size the blocks of every slot group, and then the pages. Each is made when a step first reaches it.
RowCache = tuple[Any, ...]


class Run(NamedTuple):
    """Consecutive tokens of one slot, from a position on."""

    tokens: KV  # in the axes of a block, without slots
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
            block = Block(keys, jnp.zeros((number, num_kv_heads, num_positions, head_dim), dtype))
            if not has_scales(dtype):
                return block
            scales = jnp.zeros((number, num_kv_heads, 1, num_positions), jnp.float32)
            return Block(*block[:2], scales, jnp.zeros_like(scales))

        contexts = tuple(
            tuple(empty(last - first, end - begin) for first, last in _spans(layout.slot_sizes))
            for begin, end in _spans(layout.context_sizes)
        )
        return (*contexts, empty(layout.num_pages, layout.page_size))

    def save(self, layers: Sequence[RowCache], pages: RowPages) -> list[RowCache]:
        """Copy pages out of a slot's rows."""
        rows, saved = [rows_of(cache) for cache in layers], [cache[-1] for cache in layers]
        for index, number, part in self._parts(pages, len(saved[0].keys)):
            blocks = [of_layer[index][number] for of_layer in rows]
            saved = jax.lax.fori_loop(part.begin, part.end, functools.partial(_save_page, part, blocks), saved)
        return [(*cache[:-1], of_layer) for cache, of_layer in zip(layers, saved, strict=True)]

    def restore(self, layers: Sequence[RowCache], pages: RowPages) -> list[RowCache]:
        """Copy pages into a slot's rows."""
        rows, saved = [[list(group) for group in rows_of(c)] for c in layers], [cache[-1] for cache in layers]
        for index, number, part in self._parts(pages, len(saved[0].keys)):
            blocks = [of_layer[index][number] for of_layer in rows]
            blocks = jax.lax.fori_loop(part.begin, part.end, functools.partial(_restore_page, part, saved), blocks)
            for of_layer, block in zip(rows, blocks, strict=True):
                of_layer[index][number] = block
        return [with_rows(cache, of_layer) for cache, of_layer in zip(layers, rows, strict=True)]

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
            write = functools.partial(_write_window, slot=slot, start=run.start - begin, is_here=is_here)
            groups[index][number] = block.map(write, run.tokens, POSITION_AXES)

    def row_block(self, groups: Sequence[Sequence[Block]], number: int, slot: Int[Array, ""]) -> Block:
        """Return one slot's part of a context block."""
        found = None
        for index, (first, last) in enumerate(self.slot_spans):
            local = jnp.clip(slot - first, 0, last - first - 1)
            row = groups[index][number].map(functools.partial(_row_of, slot=local))
            is_here = (slot >= first) & (slot < last)
            found = row if found is None else row.map(functools.partial(jnp.where, is_here), found)
        assert found is not None, "a layout has at least one group of slots"
        return found

    def _parts(self, pages: RowPages, num_pages: int) -> Iterator[tuple[int, int, "_CopyPart"]]:
        """Yield the slot group and the context of every block, with the part of a copy that lies in it."""
        num_copied = jnp.sum(pages.ids < num_pages, dtype=jnp.int32)
        for index, (first_slot, end_slot) in enumerate(self.slot_spans):
            is_here = (pages.slot >= first_slot) & (pages.slot < end_slot)
            slot = jnp.clip(pages.slot - first_slot, 0, end_slot - first_slot - 1)
            for number, span in enumerate(_spans(self.layout.context_sizes)):
                borders = [position // self.layout.page_size - pages.first for position in span]
                begin, end = (jnp.clip(border, 0, num_copied) for border in borders)
                start = pages.first * self.layout.page_size - span[0]
                yield index, number, _CopyPart(pages.ids, slot, start, begin, jnp.where(is_here, end, begin))


class _CopyPart(NamedTuple):
    """The pages of a copy that lie in one block. One loop copies them, and runs for no other slot or position."""

    ids: Int[Array, " page"]  # of the whole copy
    slot: Int[Array, ""]  # within the block
    start: Int[Array, ""]  # the block's position at which the copy begins; negative if that lies before the block
    begin: Int[Array, ""]  # index of the first page in the block
    end: Int[Array, ""]  # index after that of the last page in the block


def rows_of(cache: RowCache) -> Rows:
    """Return a cache's blocks by slot group and then by context."""
    return tuple(zip(*cache[:-1], strict=True))


def with_rows(cache: RowCache, rows: Sequence[Sequence[Block]]) -> RowCache:
    """Return a cache with new blocks and the same pages."""
    return (*zip(*rows, strict=True), cache[-1])


def write_column(block: Block, tokens: KV, positions: Int[Array, " slot"], size: int) -> Block:
    """Write one token per slot, as [slot, kv_head, head_dim]; a position outside the block is dropped."""
    if len(positions) == 1:
        # XLA turns a scatter into one slot into an update per reader, each on a copy of the block. A window of one
        # token behind a barrier stays a single update in place.
        slot, is_here = jnp.zeros((), jnp.int32), positions[0] >= 0
        write = functools.partial(_write_window, slot=slot, start=positions[0], is_here=is_here)
        columns = tokens.map(lambda token, axis: jnp.expand_dims(token[0], axis - 1), POSITION_AXES)
        return jax.lax.optimization_barrier(block.map(write, columns, POSITION_AXES))
    rows = jnp.arange(len(positions), dtype=jnp.int32)
    inside = jnp.where((positions >= 0) & (positions < size), positions, size)

    def scatter(old: Array, new: Array, axis: int) -> Array:
        place = old.at[rows, :, :, inside] if axis == 3 else old.at[rows, :, inside]
        return place.set(new.astype(old.dtype), mode="drop")

    return block.map(scatter, tokens, POSITION_AXES)


def _write_window(
    block: Num[Array, "slot a b c"],
    chunk: Num[Array, "a p q"],
    axis: int,
    *,
    slot: Int[Array, ""],
    start: Int[Array, ""],
    is_here: Array,
) -> Num[Array, "slot a b c"]:
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


def _save_page(part: _CopyPart, blocks: list[Block], index: Int[Array, ""], saved: list[Pages]) -> list[Pages]:
    """Copy one page of every layer."""
    position, page = part.start + index * saved[0].values.shape[2], part.ids[index]

    def copy(rows: Array, pages: Array, axis: int) -> Array:
        copied = jax.lax.dynamic_slice(rows, _offsets(part.slot, position, axis), (1, *pages.shape[1:]))
        return jax.lax.dynamic_update_slice(pages, copied, (page, 0, 0, 0))

    return [block.map(copy, old, POSITION_AXES) for block, old in zip(blocks, saved, strict=True)]


def _restore_page(part: _CopyPart, saved: list[Pages], index: Int[Array, ""], blocks: list[Block]) -> list[Block]:
    """Copy one page of every layer."""
    position, page = part.start + index * saved[0].values.shape[2], part.ids[index]

    def copy(rows: Array, pages: Array, axis: int) -> Array:
        copied = jax.lax.dynamic_slice_in_dim(pages, page, 1, 0)
        return jax.lax.dynamic_update_slice(rows, copied, _offsets(part.slot, position, axis))

    return [block.map(copy, source, POSITION_AXES) for block, source in zip(blocks, saved, strict=True)]


def _offsets(slot: Int[Array, ""], position: Int[Array, ""], axis: int) -> tuple[Int[Array, ""] | int, ...]:
    return tuple(slot if a == 0 else (position if a == axis else 0) for a in range(4))


def _row_of(block: Num[Array, "slot a b c"], slot: Int[Array, ""]) -> Num[Array, "a b c"]:
    return jax.lax.dynamic_index_in_dim(block, slot, 0, keepdims=False)


def _spans(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(pairwise((0, *sizes)))
