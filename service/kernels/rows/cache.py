"""The KV cache on a CPU: a row of positions per slot, divided into blocks so that no step copies keys or values.

XLA:CPU copies every gathered or sliced operand before a product, which costs more than the product. So nothing is
gathered or sliced: the cache of a layer is divided at the same boundaries as steps, and a step reads whole blocks.

                 positions 0..255      256..1023         1024..4095
    slot  0      block [0][0]          block [0][1]      block [0][2]         decode of slot 0, context up to 1024:
    slots 1..3   block [1][0]          block [1][1]      block [1][2]         blocks [0][0] and [0][1], in place
    slots 4..15  block [2][0]          block [2][1]      block [2][2]
    prefill row  block [3][0]          block [3][1]      block [3][2]

A prefill step of one sequence uses the prefill row, so that its program is the same for every slot: one that looks the
slot up among the groups takes twice as long to compile. Copies then insert the result into the row of the slot. Steps
of several sequences, of which there are few programs, compute each sequence in its slot.

Keys have positions innermost, values have dimensions innermost, so that both products access memory sequentially. Pages
for the prefix cache are copies in addition to the rows.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Int, Num

from service.device.lazy_zeros import lazy_zeros
from service.kernels.cache_layout import CacheLayout, spans
from service.kernels.kv import KV, has_scales
from service.kernels.paging import Paging

# The keys and values of some slots at some positions: keys [slot, kv_head, head_dim, position], values
# [slot, kv_head, position, head_dim], scales [slot, kv_head, 1, position]; a single slot has no first axis.
Block = KV
Pages = KV  # of one layer, in addition to its rows, with pages instead of slots
POSITION_AXES = (3, 2, 3, 3)  # of a block

Rows = tuple[tuple[Block, ...], ...]  # [slot group][context block]; the last group is the prefill row


class RowCache(NamedTuple):
    """The cache of one layer."""

    rows: Rows
    pages: Pages


@dataclass(frozen=True)
class SlotRows:
    """The cache operations of an `AttentionKernel` that keeps a row of positions per slot."""

    layout: CacheLayout

    kv_head_axis: ClassVar[int] = 1

    @property
    def slot_spans(self) -> list[tuple[int, int]]:
        """The half-open range of slots of each slot group."""
        return spans(self.layout.slot_sizes)

    @property
    def context_spans(self) -> list[tuple[int, int]]:
        """The half-open range of positions of each context block."""
        return spans(self.layout.context_sizes)

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> RowCache:
        """Return empty rows and pages."""

        def empty(number: int, num_positions: int) -> Block:
            keys = lazy_zeros((number, num_kv_heads, head_dim, num_positions), dtype)
            block = Block(keys, lazy_zeros((number, num_kv_heads, num_positions, head_dim), dtype))
            if not has_scales(dtype):
                return block
            scales = (number, num_kv_heads, 1, num_positions)
            return Block(*block[:2], lazy_zeros(scales, jnp.float32), lazy_zeros(scales, jnp.float32))

        sizes = [*(last - first for first, last in self.slot_spans), 1]
        rows = tuple(tuple(empty(size, end - begin) for begin, end in self.context_spans) for size in sizes)
        return RowCache(rows, empty(layout.num_pages, layout.page_size))

    def touched(self, paging: Paging) -> list[tuple[int, int]]:
        """Return the spans of the context blocks that a step with this width of page table can reach."""
        reach = paging.page_table.shape[1] * self.layout.page_size
        return [span for span in self.context_spans if span[0] < reach]

    def write_to_slot(
        self, groups: list[list[Block]], number: int, run: KV, *, slot: Int[Array, ""], start: Int[Array, ""]
    ) -> None:
        """Write consecutive tokens into a context block of their slot's group; see `write_run`."""
        for index, (first, last) in enumerate(self.slot_spans):
            is_here = (slot >= first) & (slot < last)
            local = jnp.clip(slot - first, 0, last - first - 1)
            groups[index][number] = write_run(groups[index][number], run, start, is_here, row=local)

    def row_of_slot(self, groups: Sequence[Sequence[Block]], number: int, slot: Int[Array, ""]) -> Block:
        """Return one slot's part of a context block."""
        selected = None
        for index, (first, last) in enumerate(self.slot_spans):
            local = jnp.clip(slot - first, 0, last - first - 1)
            row = groups[index][number].map(functools.partial(_row_of, row=local))
            is_here = (slot >= first) & (slot < last)
            selected = row if selected is None else row.map(functools.partial(jnp.where, is_here), selected)
        assert selected is not None, "a layout has at least one group of slots"
        return selected


def write_run(
    block: Block, tokens: KV, start: Int[Array, ""], is_here: Bool[Array, ""], *, row: Int[Array, ""] | int = 0
) -> Block:
    """Write consecutive tokens, with the axes of a block without slots, to one of a block's rows.

    Args:
        block: the block, whose first position is 0.
        tokens: the tokens; tokens outside of the block are dropped.
        start: position of the first token; negative if it is before the block.
        is_here: False to write nothing.
        row: the row of the block.
    """
    return block.map(functools.partial(_write_window, row=row, start=start, is_here=is_here), tokens, POSITION_AXES)


def write_column(block: Block, tokens: KV, positions: Int[Array, " slot"], size: int) -> Block:
    """Write one token per slot, as [slot, kv_head, head_dim]; positions outside the block are dropped."""
    if len(positions) == 1:
        # XLA turns a scatter to one slot into an update per reader, each on a copy of the block. A window of one token
        # behind a barrier stays a single in-place update.
        columns = tokens.map(lambda token, axis: jnp.expand_dims(token[0], axis - 1), POSITION_AXES)
        return jax.lax.optimization_barrier(write_run(block, columns, positions[0], positions[0] >= 0))
    rows = jnp.arange(len(positions), dtype=jnp.int32)
    inside = jnp.where((positions >= 0) & (positions < size), positions, size)

    def scatter(old: Array, new: Array, axis: int) -> Array:
        place = old.at[rows, :, :, inside] if axis == 3 else old.at[rows, :, inside]
        return place.set(new.astype(old.dtype), mode="drop")

    return block.map(scatter, tokens, POSITION_AXES)


def _write_window(
    block: Num[Array, "row a b c"],
    chunk: Num[Array, "a p q"],
    axis: int,
    *,
    row: Int[Array, ""] | int,
    start: Int[Array, ""],
    is_here: Bool[Array, ""],
) -> Num[Array, "row a b c"]:
    """Write the part of a run of tokens that is within the block.

    A window as long as the run is read, merged and written back, so the cost is independent of the block's size. The
    run's padding only overwrites positions after its last token, which are rewritten before they are read.
    """
    width, size = chunk.shape[axis - 1], block.shape[axis]
    length = min(width, size)
    window_start = jnp.clip(start, 0, size - length)
    offsets = tuple(row if a == 0 else (window_start if a == axis else 0) for a in range(4))
    extent = tuple(1 if a == 0 else (length if a == axis else block.shape[a]) for a in range(4))
    old = jax.lax.dynamic_slice(block, offsets, extent)
    # Token t of the run belongs to position start + t: slice it from the run padded on both sides.
    padding = [(width, width) if a == axis - 1 else (0, 0) for a in range(3)]
    shift = jnp.clip(window_start - start + width, 0, 3 * width - length)
    run = jax.lax.dynamic_slice_in_dim(jnp.pad(chunk, padding), shift, length, axis - 1)[None]
    positions = window_start + jnp.arange(length, dtype=jnp.int32)
    is_new = is_here & (positions >= start) & (positions < start + width)
    is_new = is_new.reshape([-1 if a == axis else 1 for a in range(4)])
    return jax.lax.dynamic_update_slice(block, jnp.where(is_new, run.astype(block.dtype), old), offsets)


def _row_of(block: Num[Array, "row a b c"], row: Int[Array, ""]) -> Num[Array, "a b c"]:
    return jax.lax.dynamic_index_in_dim(block, row, 0, keepdims=False)
