"""Writes of a step's scales into pages on a TPU, as a read-modify-write of the tiles of all affected pages.

A page's scales are one tile, [key_and_value, position], so that a tile of scores is multiplied by one of its rows.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float32, Int

from service.kernels.paging import Paging

ScalePages = Float32[Array, "page 1 key_and_value position"]


def write_scales(
    pages: ScalePages, new: Float32[Array, "seq token key_and_value"], paging: Paging, *, interpret: bool = False
) -> ScalePages:
    """Return the pages with the scales of a step's tokens, in the same memory if the caller donates it.

    Args:
        pages: the scales of all pages.
        new: the scales of the step's tokens.
        paging: the destinations of the tokens; no two sequences write to the same page.
        interpret: emulate the kernel without a TPU, for tests.
    """
    _, _, num_vectors, page_size = pages.shape
    width = new.shape[1]
    runs = paging.runs(width, page_size)
    num_seqs, most_pages = runs.ids.shape
    # The scales of each page's positions; positions without a new token get arbitrary values.
    positions = runs.begin[:, :, None] + jnp.arange(page_size, dtype=jnp.int32)[None, None, :]
    tokens = jnp.clip(positions - paging.start[:, None, None], 0, width - 1).reshape(num_seqs, 1, -1)
    tiles = jnp.take_along_axis(jnp.moveaxis(new, 1, 2), tokens, axis=2)
    tiles = jnp.moveaxis(tiles.reshape(num_seqs, num_vectors, most_pages, page_size), 2, 1)
    num_tiles = num_seqs * most_pages
    numbers = (runs.ids, runs.first - runs.begin, runs.end - runs.begin)
    return pl.pallas_call(
        _change_tiles,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(numbers),
            in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM), pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[
                pltpu.VMEM((num_tiles, num_vectors, page_size), jnp.float32),
                pltpu.SemaphoreType.DMA,
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(pages.shape, pages.dtype),
        input_output_aliases={len(numbers) + 1: 0},
        interpret=interpret,
        name="write_scales",
    )(*(each.reshape(-1) for each in numbers), tiles.reshape(num_tiles, num_vectors, page_size), pages)


def _change_tiles(
    ids: jax.Ref,
    firsts: jax.Ref,
    ends: jax.Ref,
    *refs: jax.Ref,
) -> None:
    """Read, modify and write all tiles."""
    new, _, pages, tiles, arrived = refs  # the second is the input that the third aliases

    def for_each_tile(act: Callable[[Int[Array, ""]], None]) -> None:
        @pl.loop(0, ids.shape[0])
        def _(tile: Int[Array, ""]) -> None:
            @pl.when(firsts[tile] < ends[tile])
            def _() -> None:
                act(tile)

    def read(tile: Int[Array, ""]) -> Any:
        return pltpu.make_async_copy(pages.at[ids[tile], 0], tiles.at[tile], arrived)

    def write(tile: Int[Array, ""]) -> Any:
        return pltpu.make_async_copy(tiles.at[tile], pages.at[ids[tile], 0], arrived)

    def change(tile: Int[Array, ""]) -> None:
        position = jax.lax.broadcasted_iota(jnp.int32, tiles.shape[1:], 1)
        is_new = (position >= firsts[tile]) & (position < ends[tile])
        tiles[tile] = jnp.where(is_new, new[tile], tiles[tile])

    for_each_tile(lambda tile: read(tile).start())
    for_each_tile(lambda tile: read(tile).wait())
    for_each_tile(change)
    for_each_tile(lambda tile: write(tile).start())
    for_each_tile(lambda tile: write(tile).wait())
