"""Copies of pages within a CPU's cache, between slots' rows, pages and the prefill row.

Each copy loops over its pages once for every block that may contain them, so that it costs no more than its bytes and
every array is updated in place.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from service.kernels.cache_layout import CacheLayout, CopyKind, spans
from service.kernels.paging import RowPages
from service.kernels.rows.cache import POSITION_AXES, Block, RowCache

type _Place = tuple[Int[Array, ""] | int, Int[Array, ""] | int]  # index along an array's first axis, and position


def copy_pages(layout: CacheLayout, kind: CopyKind, layers: Sequence[RowCache], pages: RowPages) -> list[RowCache]:
    """Copy a slot's pages in every layer."""
    rows, saved = [[list(group) for group in cache.rows] for cache in layers], [cache.pages for cache in layers]
    for part in _parts(layout, kind, pages):
        in_slots = [layer_rows[part.group][part.context] for layer_rows in rows]
        in_prefill_row = [layer_rows[-1][part.context] for layer_rows in rows]
        outside = saved if kind.has_pages else in_prefill_row
        sources, targets = (in_slots, outside) if kind.leaves_slot else (outside, in_slots)
        copied = jax.lax.fori_loop(part.begin, part.end, functools.partial(_copy_page, part, sources), targets)
        if kind is CopyKind.SAVE:
            saved = copied
            continue
        group = -1 if kind is CopyKind.EXTRACT else part.group
        for layer_rows, block in zip(rows, copied, strict=True):
            layer_rows[group][part.context] = block
    return [
        RowCache(tuple(tuple(group) for group in layer_rows), layer_pages)
        for layer_rows, layer_pages in zip(rows, saved, strict=True)
    ]


class _Part(NamedTuple):
    """The pages of a copy that are in one block. One loop copies them; it is empty for other slots or positions."""

    kind: CopyKind
    page_size: int
    group: int
    context: int
    ids: Int[Array, " page"]  # of the whole copy
    slot: Int[Array, ""]  # within the block
    start: Int[Array, ""]  # position in the block at which the copy starts; negative if it is before the block
    begin: Int[Array, ""]  # index of the first page in the block
    end: Int[Array, ""]  # one past the index of the last page in the block

    def places(self, index: Int[Array, ""]) -> tuple[_Place, _Place]:
        """Return the source and the destination of a page."""
        position = self.start + index * self.page_size
        in_slot = (self.slot, position)
        outside = (self.ids[index], 0) if self.kind.has_pages else (0, position)
        return (in_slot, outside) if self.kind.leaves_slot else (outside, in_slot)


def _parts(layout: CacheLayout, kind: CopyKind, pages: RowPages) -> Iterator[_Part]:
    num_copied = jnp.sum(pages.ids < layout.num_pages, dtype=jnp.int32)
    for group, (first_slot, end_slot) in enumerate(spans(layout.slot_sizes)):
        is_here = (pages.slot >= first_slot) & (pages.slot < end_slot)
        slot = jnp.clip(pages.slot - first_slot, 0, end_slot - first_slot - 1)
        for context, span in enumerate(spans(layout.context_sizes)):
            borders = [position // layout.page_size - pages.first for position in span]
            begin, end = (jnp.clip(border, 0, num_copied) for border in borders)
            start = pages.first * layout.page_size - span[0]
            end = jnp.where(is_here, end, begin)
            yield _Part(kind, layout.page_size, group, context, pages.ids, slot, start, begin, end)


def _copy_page(part: _Part, sources: list[Block], index: Int[Array, ""], targets: list[Block]) -> list[Block]:
    """Copy one page of every layer."""
    source_place, target_place = part.places(index)

    def copied(source: Array, target: Array, axis: int) -> Array:
        extent = tuple(1 if a == 0 else (part.page_size if a == axis else source.shape[a]) for a in range(4))
        page = jax.lax.dynamic_slice(source, _offsets(source_place, axis), extent)
        return jax.lax.dynamic_update_slice(target, page, _offsets(target_place, axis))

    return [source.map(copied, target, POSITION_AXES) for source, target in zip(sources, targets, strict=True)]


def _offsets(place: _Place, axis: int) -> tuple[Int[Array, ""] | int, ...]:
    first, position = place
    return tuple(first if a == 0 else (position if a == axis else 0) for a in range(4))
