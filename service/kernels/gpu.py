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
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.gpu_tile import LOG2_E, Tile, attend_tile
from service.kernels.kv import KV
from service.kernels.paging import Paging
from service.kernels.products.quantized import FP8
from service.kernels.reference import KVPages, PagedReference, write_tokens

# Tile sizes such that queries and the stages of keys and values fit into an L4's 99 KiB of shared memory. Of 24 choices
# of stages, warps, tiles and programs on an H200, these are near the best for every load that was tried: 64 sequences
# of 1,024 tokens, one, 32 of 1,024 to 8,192, and a prompt of 2,048.
SMALLEST_TILE = 16  # query rows, positions and dimensions of a product on tensor cores
MOST_ROWS = 64  # query rows of a tile
MOST_POSITIONS = 128  # of a tile
TILE_BYTES = 16 * 1024  # of the queries, the keys or the values of one tile
NUM_WARPS, NUM_STAGES = 4, 3
# The context is split if there are fewer programs: eight per multiprocessor of the largest chips, so that one long
# sequence among short ones keeps none of them waiting for long.
ENOUGH_PROGRAMS = 1024
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
        width, num_kv_heads, group, head_dim = query.shape[1:]
        page_size = cache.keys.shape[2]
        context = paging.page_table.shape[1] * page_size
        queries, vectors = (TILE_BYTES // (_power_of_two(head_dim) * of.dtype.itemsize) for of in (query, cache.keys))
        num_rows = _power_of_two(width * group, most=min(MOST_ROWS, queries))
        window = scoring.sliding_window
        reach = context if window is None else min(context, window + width)
        num_blocks = pl.cdiv(width * group, num_rows)
        tile = Tile(
            num_rows=num_rows,
            num_positions=_power_of_two(vectors, most=MOST_POSITIONS),
            num_splits=_num_splits(len(query) * num_kv_heads * num_blocks, reach),
            width=width,
            group=group,
            page_size=page_size,
            scoring=scoring,
            stored=np.dtype(cache.keys.dtype),
            is_unfinished=sinks is not None,
            looks_ahead=paging.ahead is not None,
        )
        if not tile.writes:
            with jax.named_scope("cache_update"):
                cache = write_tokens(cache, new_keys, new_values, paging)
        with jax.named_scope("attention"):
            outputs = self._attend_rows(query, (new_keys, new_values), cache.map(_loadable), paging, tile)
            if tile.writes:
                num_arrays = len(_arrays(cache))
                outputs, written = outputs[:-num_arrays], outputs[-num_arrays:]
                cache = KVPages(*(_as(part, like) for part, like in zip(written, _arrays(cache), strict=True)))
            attended = outputs[0] if tile.is_finished else _join(*outputs, sinks=sinks).astype(query.dtype)
            return attended, cache

    def _attend_rows(
        self,
        query: QueryHeads,
        new: tuple[KVHeads, KVHeads],
        pages: KVPages,
        paging: Paging,
        tile: Tile,
    ) -> Sequence[jax.Array]:
        """Return the results, or the three parts of unfinished ones by split; then the pages, if the kernel writes."""
        num_seqs, width, num_kv_heads, group, head_dim = query.shape
        splits = tile.num_splits
        number = pl.BlockSpec((None,), lambda i, head, seq: (seq,))
        table = pl.BlockSpec((None, paging.page_table.shape[1]), lambda i, head, seq: (seq, 0))
        heads = pl.BlockSpec((None, width, None, group, head_dim), lambda i, head, seq: (seq, 0, head, 0, 0))
        of_pages = [(part, _of_kv_head(part)) for part in _arrays(pages)]
        operands = [(query, heads), (paging.page_table, table), (paging.start, number), (paging.num_tokens, number)]
        first_page = len(operands)
        operands += of_pages
        if paging.ahead is not None:
            operands.append((paging.ahead, pl.BlockSpec((None, width), lambda i, head, seq: (seq, 0))))
        if tile.is_finished:
            outputs = [(jax.ShapeDtypeStruct(query.shape, query.dtype), heads)]
        else:
            by_split = pl.BlockSpec(
                (None, None, width, None, group), lambda i, head, seq: (i % splits, seq, 0, head, 0)
            )
            weighted = pl.BlockSpec(
                (None, None, width, None, group, head_dim), lambda i, head, seq: (i % splits, seq, 0, head, 0, 0)
            )
            shape = (splits, *query.shape)
            outputs = [
                (jax.ShapeDtypeStruct(shape, jnp.float32), weighted),
                *[(jax.ShapeDtypeStruct(shape[:-1], jnp.float32), by_split)] * 2,
            ]
        aliases = {}
        if tile.writes:
            aliases = {first_page + index: len(outputs) + index for index in range(len(of_pages))}
            of_token = pl.BlockSpec((None, width, None, head_dim), lambda i, head, seq: (seq, 0, head, 0))
            operands += [(part, of_token) for part in new]
            outputs += [(jax.ShapeDtypeStruct(part.shape, part.dtype), spec) for part, spec in of_pages]
        num_blocks = pl.cdiv(width * group, tile.num_rows)
        return pl.pallas_call(
            functools.partial(attend_tile, tile=tile),
            grid=(num_blocks * splits, num_kv_heads, num_seqs),
            in_specs=[spec for _, spec in operands],
            out_specs=[spec for _, spec in outputs],
            out_shape=[shape for shape, _ in outputs],
            input_output_aliases=aliases,
            compiler_params=plgpu.CompilerParams(num_warps=NUM_WARPS, num_stages=NUM_STAGES),
            interpret=self.interpret,
            name="paged_attention",
        )(*[operand for operand, _ in operands])


def _arrays(kv: KV) -> list[jax.Array]:
    """Return the keys and the values, and their scales if there are any."""
    return [part for part in kv if part is not None]


def _loadable(part: jax.Array) -> jax.Array:
    """Return FP8 as bytes: Triton has no masked loads of it."""
    return jax.lax.bitcast_convert_type(part, jnp.uint8) if part.dtype == FP8 else part


def _as(part: jax.Array, like: jax.Array) -> jax.Array:
    return part if part.dtype == like.dtype else jax.lax.bitcast_convert_type(part, like.dtype)


def _of_kv_head(part: jax.Array) -> pl.BlockSpec:
    """Return the block that is one KV head of all pages."""
    return pl.BlockSpec((part.shape[0], None, *part.shape[2:]), lambda i, head, seq: (0, head, 0, 0))


def _join(
    weighted: Float[Array, "split seq token kv_head group dim"],
    highest: Float[Array, "split seq token kv_head group"],
    totals: Float[Array, "split seq token kv_head group"],
    *,
    sinks: Sinks | None,
) -> Float[Array, "seq token kv_head group dim"]:
    """Combine the partial softmaxes of each query head's splits, and its sink if there is one.

    Split by split, so that XLA makes one kernel of it: of reductions it makes four.
    """
    parts = list(zip(weighted, highest, totals, strict=True))
    highest_of_all = functools.reduce(jnp.maximum, highest)
    of_sinks = None if sinks is None else sinks.astype(jnp.float32)[None, None] * LOG2_E  # scores are exponents of 2
    if of_sinks is not None:
        highest_of_all = jnp.maximum(highest_of_all, of_sinks)
    shares = [jnp.exp2(of_split - highest_of_all) for _, of_split, _ in parts]
    total = sum(of_split * share for (_, _, of_split), share in zip(parts, shares, strict=True))
    if of_sinks is not None:
        total = total + jnp.exp2(of_sinks - highest_of_all)
    joined = sum(of_split * share[..., None] for (of_split, _, _), share in zip(parts, shares, strict=True))
    return joined / jnp.where(total == 0, 1, total)[..., None]


def _num_splits(num_programs: int, reach: int) -> int:
    """Return the number of splits of a context: enough programs to keep the chip busy, but no very short splits."""
    return max(1, min(ENOUGH_PROGRAMS // num_programs, reach // SHORTEST_SPLIT))


def _power_of_two(size: int, *, most: int | None = None) -> int:
    """Round up to a power of two, at least SMALLEST_TILE and at most `most`."""
    rounded = max(pl.next_power_of_2(size), SMALLEST_TILE)
    return rounded if most is None else min(rounded, most)
