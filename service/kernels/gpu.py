"""Attention on a GPU: one kernel for prefill and decode that reads pages in place.

The queries of a step form the rows of a matrix, with the heads of a group side by side, so that a tile of query rows
and a tile of positions form a matrix product, whether the rows are heads of one token or of many:

    row      0       1       2       3       4       5      ...     group = 3
    token    0       0       0       1       1       1
    head     0       1       2       0       1       2

    grid     (programs, kv_head)

Without splits there is a program for each block of rows. Few query rows over a long context would leave most of the
chip idle, and so would one long sequence among short ones. Then the positions that a block reads are split, and a list
assigns work to each program of a fixed grid (`gpu_work.py`). Splits output a partial softmax, and a second kernel
combines these (flash-decoding, `gpu_join.py`).

Why Pallas on Triton: it runs on Ampere, Ada (Cloud Run's L4) and newer, and in interpret mode without a GPU. Pallas on
Mosaic needs Hopper; cuDNN's paged attention, as called by JAX, requires exactly as many pages as its tables have
entries, and has no soft cap. JAX has deprecated its Triton backend, and JAX 0.12 may drop it: the upper bound on jax in
pyproject.toml stays until this file has moved to another backend.

Source: Dao et al. 2022, arXiv:2205.14135 (tiles, running softmax); Dao et al. 2023, "Flash-Decoding for long-context
inference" (splits); Kwon et al. 2023, arXiv:2309.06180 (pages).
"""

import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.gpu_join import JoinOperands, join_splits
from service.kernels.gpu_tile import Operands, Outputs, SplitParts, attend_tiles, of_kv_head
from service.kernels.gpu_work import WorkTile, work_list
from service.kernels.paging import Paging
from service.kernels.products.quantized import FP8
from service.kernels.reference import KVPages, PagedReference, write_tokens

# Tile sizes such that queries and the stages of keys and values fit into an L4's 99 KiB of shared memory. Of 24 choices
# of stages, warps, tiles and programs on an H200, when all sequences of a step had as many splits, these were near the
# best for every load that was tried: 64 sequences of 1,024 tokens, one, 32 of 1,024 to 8,192, and a prompt of 2,048.
SMALLEST_TILE = 16  # query rows, positions and dimensions of a product on tensor cores
MOST_ROWS = 64  # query rows of a tile
MOST_POSITIONS = 128  # of a tile
TILE_BYTES = 16 * 1024  # of the queries, the keys or the values of one tile
NUM_WARPS, NUM_STAGES = 4, 3
# Positions are split if there are fewer programs: eight per multiprocessor of the largest chips. That many share the
# sequences of a step if each has a usual number of cached tokens; a longer one has more splits.
ENOUGH_PROGRAMS = 1024
USUAL_TOKENS = 1024
# One long sequence among many is split among about as many programs as the largest chips run at once, so that none
# takes longer than the sequence's own share of a step.
PROGRAMS_AT_ONCE = 256
SHORTEST_SPLIT = 128  # positions, of a sequence that fills its context


@dataclass(frozen=True)
class TritonAttention(PagedReference):
    """An `AttentionKernel` with the page format of the reference, which it reads in place."""

    interpret: bool = False  # emulate the kernel without a GPU, for tests

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads | None,
        new_values: KVHeads | None,
        cache: KVPages,
        paging: Paging,
        *,
        scoring: Scoring,
        sinks: Sinks | None = None,
    ) -> tuple[QueryHeads, KVPages]:
        """Write the new tokens into their pages and attend over the pages in place."""
        tile = _tile(query, cache, paging, scoring, has_new=new_keys is not None)
        if not tile.writes:
            with jax.named_scope("cache_update"):
                cache = write_tokens(cache, new_keys, new_values, paging)
        with jax.named_scope("attention"):
            operands = Operands(
                pages=cache.map(_loadable),
                query=query,
                paging=paging,
                new=(new_keys, new_values) if tile.writes else None,
                sinks=sinks,
                ends=work_list(paging, tile) if tile.is_split else None,
            )
            outputs = self._attend_rows(operands, tile)
            attended = outputs.attended
            if outputs.pages is not None:
                cache = outputs.pages.map(_as, cache)
            if outputs.parts is not None:
                joined = JoinOperands(attended, outputs.parts, operands.ends, sinks)
                attended = join_splits(joined, tile, interpret=self.interpret)
            return attended, cache

    def _attend_rows(self, operands: Operands, tile: WorkTile) -> Outputs:
        query, pages = operands.query, operands.pages
        num_kv_heads, head_dim = query.shape[2], query.shape[-1]
        specs = Operands(
            pages=pages.map(lambda part: of_kv_head(part, 1)),
            query=of_kv_head(query, 2),
            paging=jax.tree.map(of_kv_head, operands.paging),
            new=None if operands.new is None else tuple(of_kv_head(part, 2) for part in operands.new),
            sinks=None if operands.sinks is None else of_kv_head(operands.sinks, 0),
            ends=None if operands.ends is None else of_kv_head(operands.ends),
        )
        outputs = Outputs(pages if tile.writes else None, query, _parts(tile, num_kv_heads, head_dim))
        shapes = jax.tree.map(lambda part: jax.ShapeDtypeStruct(part.shape, part.dtype), outputs)
        of_outputs = Outputs(
            pages=specs.pages if tile.writes else None,
            attended=specs.query,
            parts=None if outputs.parts is None else SplitParts(*(of_kv_head(part, 1) for part in outputs.parts)),
        )
        num_blocks = tile.num_seqs * tile.num_blocks
        num_programs = min(tile.most_items, max(num_blocks, ENOUGH_PROGRAMS // num_kv_heads))
        num_arrays = len(jax.tree.leaves(outputs.pages))
        [outputs] = pl.pallas_call(
            functools.partial(attend_tiles, tile=tile),
            grid=(num_programs, num_kv_heads),
            in_specs=(specs,),
            out_specs=(of_outputs,),
            out_shape=(shapes,),
            input_output_aliases={index: index for index in range(num_arrays)},
            compiler_params=plgpu.CompilerParams(num_warps=NUM_WARPS, num_stages=NUM_STAGES),
            interpret=self.interpret,
            name="paged_attention",
        )(operands)
        return outputs


def _tile(query: QueryHeads, cache: KVPages, paging: Paging, scoring: Scoring, *, has_new: bool) -> WorkTile:
    """Return the constants of a call, which follow from its shapes."""
    num_seqs, width, num_kv_heads, group, head_dim = query.shape
    page_size = cache.keys.shape[2]
    queries, vectors = (TILE_BYTES // (_power_of_two(head_dim) * of.dtype.itemsize) for of in (query, cache.keys))
    tile = WorkTile(
        num_rows=_power_of_two(width * group, most=min(MOST_ROWS, queries)),
        num_positions=_power_of_two(vectors, most=MOST_POSITIONS),
        num_seqs=num_seqs,
        width=width,
        writes=has_new and width == 1,
        group=group,
        page_size=page_size,
        scoring=scoring,
        stored=np.dtype(cache.keys.dtype),
    )
    context, window = paging.page_table.shape[1] * page_size, scoring.sliding_window
    reach = context if window is None else min(context, window + width)
    num_programs = num_seqs * tile.num_blocks * num_kv_heads
    # Rows of a prompt are read together, so none of them is much longer than the others.
    most_splits = max(ENOUGH_PROGRAMS // num_programs, PROGRAMS_AT_ONCE // num_kv_heads if width == 1 else 0)
    return replace(
        tile,
        most_splits=max(1, min(most_splits, reach // SHORTEST_SPLIT)),
        shortest_split=max(1, num_programs * USUAL_TOKENS // ENOUGH_PROGRAMS // tile.num_positions),
    )


def _parts(tile: WorkTile, num_kv_heads: int, head_dim: int) -> SplitParts | None:
    """Return the shapes of partial results."""
    if not tile.is_split:
        return None
    rows = (tile.most_items, num_kv_heads, min(tile.num_rows, tile.width * tile.group))
    of_rows = jax.ShapeDtypeStruct(rows, jnp.float32)
    return SplitParts(jax.ShapeDtypeStruct((*rows, head_dim), jnp.float32), of_rows, of_rows)


def _loadable(part: jax.Array) -> jax.Array:
    """Return FP8 as bytes: Triton has no masked loads of it."""
    return jax.lax.bitcast_convert_type(part, jnp.uint8) if part.dtype == FP8 else part


def _as(part: jax.Array, like: jax.Array) -> jax.Array:
    return part if part.dtype == like.dtype else jax.lax.bitcast_convert_type(part, like.dtype)


def _power_of_two(size: int, *, most: int | None = None) -> int:
    """Round up to a power of two, at least SMALLEST_TILE and at most `most`."""
    rounded = max(pl.next_power_of_2(size), SMALLEST_TILE)
    return rounded if most is None else min(rounded, most)
