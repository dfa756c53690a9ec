"""Attention over pages on a CPU, in C++: see `service/device/native/attend.h`.

XLA on a CPU copies what it gathers, more slowly than it multiplies. This reads each sequence's pages in place, up to
the sequence's last token, whatever the width of the page table.
"""

from dataclasses import dataclass
from typing import override

import jax
import jax.numpy as jnp
import numpy as np

from service.device.native.library import ATTENTION_TARGET, MEMORY_ATTENTION_TARGET, register_native_calls
from service.kernels.attention import KVHeads, QueryHeads, Scoring, Sinks
from service.kernels.blocks import BlockAttention
from service.kernels.kv import as_stored
from service.kernels.paging import Paging
from service.kernels.reference import KVPages

NO_SINK = -1e30  # a score whose share is below the rounding of the others
WHOLE_CONTEXT = np.iinfo(np.int32).max  # as a window


@dataclass(frozen=True)
class NativePagedAttention(BlockAttention):
    """A `MemoryKernel` that reads pages in place; the pages are those of the reference."""

    @override
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
        """Write what is new into its pages and attend, in one call; the result of padding is zero.

        A token's result is the same in every batch, and in every cut of its sequence into steps.
        """
        register_native_calls()
        pages = [array for array in cache if array is not None]
        scaled = query.astype(jnp.float32) * scoring.scale  # smaller than the scores
        indices = (paging.start, paging.num_tokens, paging.page_table)
        limits = (jnp.int32(scoring.sliding_window or WHOLE_CONTEXT), jnp.float32(scoring.soft_cap or 0))
        if sinks is None:
            sinks = jnp.full(query.shape[2:4], NO_SINK)
        ahead = jnp.zeros((0, 0), jnp.int32) if paging.ahead is None else paging.ahead
        limits = (*limits, sinks.astype(jnp.float32), ahead)
        operands = (scaled, *indices, *limits)
        if new_keys is None or new_values is None:
            call = jax.ffi.ffi_call(ATTENTION_TARGET, [jax.ShapeDtypeStruct(scaled.shape, scaled.dtype)])
            with jax.named_scope("attention"):
                [attended] = call(*operands, *pages)
            return attended.astype(query.dtype), cache
        stored = [array for array in as_stored(new_keys, new_values, cache.keys.dtype) if array is not None]
        operands = (*operands, *(new.astype(old.dtype) for new, old in zip(stored, pages, strict=True)))
        results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (scaled, *pages)]
        aliases = {len(operands) + index: 1 + index for index in range(len(pages))}
        call = jax.ffi.ffi_call(ATTENTION_TARGET, results, input_output_aliases=aliases)
        with jax.named_scope("attention"):
            attended, *pages = call(*operands, *pages)
        return attended.astype(query.dtype), KVPages(*pages)

    @override
    def attend_memory(self, query: QueryHeads, cache: KVPages, memory: Paging, *, scale: float) -> QueryHeads:
        """Attend to pages in place; the result of padding is zero."""
        register_native_calls()
        scaled = query.astype(jnp.float32) * scale
        call = jax.ffi.ffi_call(MEMORY_ATTENTION_TARGET, jax.ShapeDtypeStruct(scaled.shape, scaled.dtype))
        with jax.named_scope("memory_attention"):
            indices = (memory.start, memory.num_tokens, memory.page_table)
            attended = call(scaled, *indices, *(array for array in cache if array is not None))
        return attended.astype(query.dtype)
