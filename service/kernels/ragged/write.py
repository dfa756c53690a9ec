"""Writes of a step's keys and values into pages on a TPU by concurrent asynchronous copies.

XLA's scatter moves one token after another. Here, the tokens of a sequence that belong to the same page form a run,
which is contiguous on both sides. Copy sizes are static, so a run of 13 tokens is copied in pieces of 8, 4 and 1.

Source: https://github.com/vllm-project/vllm/pull/19928 (a kernel instead of a scatter);
https://github.com/sgl-project/sglang-jax/issues/132 (480 µs a layer with a copy for each position).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Int, Num

from service.kernels.paging import Paging

KVPairs = Num[Array, "page position key_and_value dim"]


def write_pairs(
    pages: KVPairs, pairs: Num[Array, "seq token word dim"], paging: Paging, *, interpret: bool = False
) -> KVPairs:
    """Return the pages with a step's tokens written to them, in place if the caller donates them.

    Args:
        pages: all pages.
        pairs: keys and values of the step's tokens, in the dtype of the pages, or as words of the same bits: XLA takes
            ten times as long to interleave keys and values of 16 bits as to pack them into words.
        paging: the destinations of the tokens; no two sequences write to the same page.
        interpret: emulate the kernel without a TPU, for tests.
    """
    num_pages, page_size, *vector = pages.shape
    width = pairs.shape[1]
    flat_pairs, flat_pages = pairs.reshape(-1, *pairs.shape[2:]), pages.reshape(num_pages * page_size, *vector)
    runs = _runs(paging, width, page_size)
    sizes = [1 << bit for bit in range(min(width, page_size).bit_length())]
    written = pl.pallas_call(
        functools.partial(_copy_runs, sizes=sizes),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(runs),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct(flat_pages.shape, flat_pages.dtype),
        input_output_aliases={len(runs) + 1: 0},
        interpret=interpret,
        name="write_pages",
    )(*runs, flat_pairs, flat_pages)
    return written.reshape(pages.shape)


def _runs(
    paging: Paging, width: int, page_size: int
) -> tuple[Int[Array, " run"], Int[Array, " run"], Int[Array, " run"]]:
    """Return each run's first token in the step, first position in the pages, and length."""
    runs = paging.runs(width, page_size)
    first_of_seq = jnp.arange(len(runs.ids), dtype=jnp.int32)[:, None] * width
    copies = (
        first_of_seq + runs.first - paging.start[:, None],
        runs.ids * page_size + runs.first - runs.begin,
        jnp.maximum(runs.end - runs.first, 0),
    )
    sources, destinations, lengths = (numbers.reshape(-1) for numbers in copies)
    return sources, destinations, lengths


def _copy_runs(
    sources: jax.Ref,
    destinations: jax.Ref,
    lengths: jax.Ref,
    *refs: Any,  # the type of references has no `bitcast`
    sizes: list[int],
) -> None:
    """Start the copies of all runs, then wait for them."""
    pairs, _, stored, arrived = refs  # the second is the input that the third aliases
    pages = stored if stored.dtype == pairs.dtype else stored.bitcast(pairs.dtype)

    def for_each_piece(act: Callable[[Any], None]) -> None:
        @pl.loop(0, lengths.shape[0])
        def _(run: Int[Array, ""]) -> None:
            for size in sizes:
                longer = lengths[run] & ~(2 * size - 1)  # the pieces before this one

                @pl.when(lengths[run] & size != 0)
                def _(size: int = size, longer: Int[Array, ""] = longer) -> None:
                    piece = pairs.at[pl.ds(sources[run] + longer, size)]
                    place = pages.at[pl.ds(destinations[run] + longer, size)]
                    act(pltpu.make_async_copy(piece, place, arrived))

    for_each_piece(lambda copy: copy.start())
    for_each_piece(lambda copy: copy.wait())
