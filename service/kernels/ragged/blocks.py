"""Block sizes of ragged paged attention by chip.

JAX tuned its kernel on both chips for bfloat16, by page size, heads, tokens and context. The table here summarizes most
of those entries: blocks of 32 tokens, and the whole context as one block, within 16 pages and two buffers of 8 MiB in
total: 1,024 positions of 8 key-value heads, 2,048 of 4, 4,096 of 2 or 1. JAX's table has no longer contexts, for which
16 of the smallest pages are too few.

Source: jax 0.11, jax/experimental/pallas/ops/tpu/ragged_paged_attention/tuned_block_sizes.py (TUNED_BLOCK_SIZES).
"""

from collections.abc import Mapping
from typing import NamedTuple

from service.device.chips import V5E, V6E

MIB = 2**20


class BlockLimits(NamedTuple):
    """The largest block of a chip."""

    queries: int  # tokens
    query_heads: int  # total over the tokens of a block
    pages: int
    positions: int
    buffer_bytes: int  # of keys and values, double-buffered
    scores: int  # per key-value head: query heads of all tokens times positions
    vmem_bytes: int | None  # limit on the kernel's VMEM; None for the compiler's default


class RaggedBlock(NamedTuple):
    """The size of a block."""

    num_pages: int
    num_queries: int
    vmem_bytes: int | None


# Both chips have 128 MiB of VMEM, of which the compiler grants a kernel 16 or 32. The largest blocks of 32 heads need
# 8 MiB of buffers and about as much for scores. Source: https://jax-ml.github.io/scaling-book/tpus/; libtpu's errors.
# 32 of the smallest pages are 512 positions. JAX's table ends at 16 because scalar registers run out.
TUNED = BlockLimits(32, 1024, 32, 4096, buffer_bytes=8 * MIB, scores=2**20, vmem_bytes=32 * MIB)
LIMITS: Mapping[str, BlockLimits] = {V5E.device_kind: TUNED, V6E.device_kind: TUNED}
# The defaults of JAX's kernel use blocks of 128 pages, which do not fit into the 16 MiB of VMEM for a kernel on a v4.
# These do. Not tuned.
OTHER_CHIPS = BlockLimits(32, 1024, 32, 512, buffer_bytes=8 * MIB, scores=2**20, vmem_bytes=None)


def choose_block(
    device_kind: str,
    *,
    page_size: int,
    num_heads: int,
    group: int,
    page_bytes: int,
    context_pages: int,
    num_tokens: int,
) -> RaggedBlock:
    """Choose the block for a step.

    Args:
        device_kind: JAX's name for the chip.
        page_size: token positions of a page.
        num_heads: cached key-value heads per device.
        group: query heads per key-value head.
        page_bytes: size of a page's keys and values in one layer on one device.
        context_pages: maximum number of pages that the step reads per sequence.
        num_tokens: tokens of the step.
    """
    limits = LIMITS.get(device_kind, OTHER_CHIPS)
    num_queries = max(min(limits.queries, limits.query_heads // (num_heads * group), num_tokens), 1)
    num_positions = min(limits.positions, limits.scores // (num_queries * group))
    num_pages = min(limits.pages, num_positions // page_size, limits.buffer_bytes // (2 * page_bytes), context_pages)
    return RaggedBlock(max(num_pages, 1), num_queries, limits.vmem_bytes)
