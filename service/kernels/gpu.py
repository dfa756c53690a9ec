"""Attention on a GPU: one kernel for prefill and decode that reads pages in place.

The queries of a step form the rows of a matrix, with the heads of a group side by side, so that a tile of query rows
and a tile of positions form a matrix product, whether the rows are heads of one token or of many:

    row      0       1       2       3       4       5      ...     group = 3
    token    0       0       0       1       1       1
    head     0       1       2       0       1       2

    grid     (row blocks x splits of the context, kv_head, sequence)

Few query rows over a long context would leave most of the chip idle. Then the context is split among programs that each
output a partial softmax, and the partial results are combined afterwards (flash-decoding).

Why Pallas on Triton: it runs on Ampere, Ada (Cloud Run's L4) and newer, and in interpret mode without a GPU. Pallas on
Mosaic needs Hopper; cuDNN's paged attention, as called by JAX, requires exactly as many pages as its tables have
entries, and has no soft cap. JAX has deprecated its Triton backend, and JAX 0.12 may drop it: the upper bound on jax in
pyproject.toml stays until this file has moved to another backend.

Source: Dao et al. 2022, arXiv:2205.14135 (tiles, running softmax); Dao et al. 2023, "Flash-Decoding for long-context
inference" (splits); Kwon et al. 2023, arXiv:2309.06180 (pages).
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.gpu_tile import LOG2_E, Tile, attend_tile
from service.kernels.paging import Paging
from service.kernels.products.quantized import FP8
from service.kernels.reference import KVPages, PagedReference, write_tokens

# Tile sizes such that queries and two stages of keys and values fit into an L4's 99 KiB of shared memory; not tuned.
SMALLEST_TILE = 16  # query rows, positions and dimensions of a product on tensor cores
MOST_ROWS = 64  # query rows of a tile
MOST_POSITIONS = 128  # of a tile
TILE_BYTES = 16 * 1024  # of the queries, the keys or the values of one tile
NUM_WARPS, NUM_STAGES = 4, 2
# The context is split if there are fewer programs: one to two per multiprocessor of the largest chips.
ENOUGH_PROGRAMS = 256
SHORTEST_SPLIT = 128  # positions


@dataclass(frozen=True)
class TritonAttention(PagedReference):
    """An `AttentionKernel` with the page format of the reference, which it reads in place."""

    interpret: bool = False  # emulate the kernel without a GPU, for tests

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads,
        new_values: KVHeads,
        cache: KVPages,
        paging: Paging,
        *,
        scoring: Scoring,
        sinks: Sinks | None = None,
    ) -> tuple[QueryHeads, KVPages]:
        """Write the new tokens into their pages and attend over the pages in place."""
        with jax.named_scope("cache_update"):
            pages = write_tokens(cache, new_keys, new_values, paging)
        num_seqs, width, num_kv_heads, group, head_dim = query.shape
        page_size = pages.keys.shape[2]
        context = paging.page_table.shape[1] * page_size
        dim = _power_of_two(head_dim)
        tile_vectors = TILE_BYTES // (dim * query.dtype.itemsize)
        num_rows = _power_of_two(width * group, most=min(MOST_ROWS, tile_vectors))
        window = scoring.sliding_window
        reach = context if window is None else min(context, window + width)
        num_blocks = pl.cdiv(width * group, num_rows)
        tile = Tile(
            num_rows=num_rows,
            num_positions=_power_of_two(tile_vectors, most=MOST_POSITIONS),
            num_splits=_num_splits(num_seqs * num_kv_heads * num_blocks, reach),
            group=group,
            page_size=page_size,
            scoring=scoring,
            has_scales=pages.key_scales is not None,
            is_fp8=pages.keys.dtype == FP8,
        )
        with jax.named_scope("attention"):
            rows = jnp.moveaxis(query, 2, 1).reshape(num_seqs, num_kv_heads, width * group, head_dim)
            padding = num_blocks * num_rows - width * group
            rows = jnp.pad(rows, ((0, 0), (0, 0), (0, padding), (0, dim - head_dim)))
            of_rows = None if sinks is None else jnp.pad(jnp.tile(sinks, (1, width)), ((0, 0), (0, padding)))
            attended = self._attend_rows(rows, pages, paging, tile, of_rows)[:, :, : width * group, :head_dim]
            attended = attended.reshape(num_seqs, num_kv_heads, width, group, head_dim)
            return jnp.moveaxis(attended, 1, 2), pages

    def _attend_rows(
        self,
        rows: Float[Array, "seq kv_head row dim"],
        pages: KVPages,
        paging: Paging,
        tile: Tile,
        sinks: Float[Array, "kv_head row"] | None,
    ) -> Float[Array, "seq kv_head row dim"]:
        num_seqs, num_kv_heads, total_rows, dim = rows.shape
        num_blocks, splits = total_rows // tile.num_rows, tile.num_splits
        row_shape = (num_seqs, num_kv_heads, total_rows)
        row_spec = pl.BlockSpec((None, None, tile.num_rows, dim), lambda i, head, seq: (seq, head, i // splits, 0))
        pages_spec = pl.BlockSpec(
            (pages.keys.shape[0], None, *pages.keys.shape[2:]), lambda i, head, seq: (0, head, 0, 0)
        )
        # Triton has no masked loads of FP8.
        keys, values = (jax.lax.bitcast_convert_type(part, jnp.uint8) if tile.is_fp8 else part for part in pages[:2])
        scales = [part for part in (pages.key_scales, pages.value_scales) if part is not None]
        scales_spec = pl.BlockSpec(
            (pages.keys.shape[0], None, pages.keys.shape[2], 1), lambda i, head, seq: (0, head, 0, 0)
        )
        number_spec = pl.BlockSpec((None,), lambda i, head, seq: (seq,))
        table_spec = pl.BlockSpec((None, paging.page_table.shape[1]), lambda i, head, seq: (seq, 0))
        is_finished = splits == 1 and sinks is None
        if is_finished:
            out_specs = [row_spec]
            out_shapes = [jax.ShapeDtypeStruct(rows.shape, rows.dtype)]
        else:
            place = (None, None, None, tile.num_rows)
            number = pl.BlockSpec(place, lambda i, head, seq: (i % splits, seq, head, i // splits))
            out_specs = [
                pl.BlockSpec((*place, dim), lambda i, head, seq: (i % splits, seq, head, i // splits, 0)),
                number,
                number,
            ]
            shape = (splits, *row_shape)
            out_shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((*shape, dim), shape, shape)]
        outputs = pl.pallas_call(
            functools.partial(attend_tile, tile=tile),
            grid=(num_blocks * splits, num_kv_heads, num_seqs),
            in_specs=[
                row_spec,
                pages_spec,
                pages_spec,
                table_spec,
                number_spec,
                number_spec,
                *[scales_spec] * len(scales),
            ],
            out_specs=out_specs,
            out_shape=out_shapes,
            compiler_params=plgpu.CompilerParams(num_warps=NUM_WARPS, num_stages=NUM_STAGES),
            interpret=self.interpret,
            name="paged_attention",
        )(rows, keys, values, paging.page_table, paging.start, paging.num_tokens, *scales)
        return outputs[0] if is_finished else _join(*outputs, sinks=sinks).astype(rows.dtype)


def _join(
    weighted: Float[Array, "split seq kv_head row dim"],
    highest: Float[Array, "split seq kv_head row"],
    totals: Float[Array, "split seq kv_head row"],
    *,
    sinks: Float[Array, "kv_head row"] | None,
) -> Float[Array, "seq kv_head row dim"]:
    """Combine the partial softmaxes of each query row's splits, and its sink if there is one."""
    highest_of_all = jnp.max(highest, axis=0, keepdims=True)
    of_sinks = None if sinks is None else sinks.astype(jnp.float32)[None] * LOG2_E  # scores are exponents of 2
    if of_sinks is not None:
        highest_of_all = jnp.maximum(highest_of_all, of_sinks[None])
    shares = jnp.exp2(highest - highest_of_all)
    total = jnp.sum(totals * shares, axis=0)
    if of_sinks is not None:
        total = total + jnp.exp2(of_sinks - highest_of_all[0])
    return jnp.sum(weighted * shares[..., None], axis=0) / jnp.where(total == 0, 1, total)[..., None]


def _num_splits(num_programs: int, reach: int) -> int:
    """Return the number of splits of a context: enough programs to keep the chip busy, but no very short splits."""
    return max(1, min(ENOUGH_PROGRAMS // num_programs, reach // SHORTEST_SPLIT))


def _power_of_two(size: int, *, most: int | None = None) -> int:
    """Round up to a power of two, at least SMALLEST_TILE and at most `most`."""
    rounded = max(pl.next_power_of_2(size), SMALLEST_TILE)
    return rounded if most is None else min(rounded, most)
