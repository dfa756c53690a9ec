"""A small case of an attention kernel compared with the reference, which shows a kernel that is wrong on a device."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from service.kernels.attention import AttentionKernel, Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference

# Relative to outputs beyond one: a few roundings in units of the last place; products of float32 may be of TF32.
TOLERANCES = {"float32": 2e-2, "bfloat16": 2**-5, "float16": 2**-8}
CACHED_TOLERANCE = 2**-4  # of keys and values in 8 bits, of which some are rounded to the neighbouring number


@dataclass(frozen=True)
class Case:
    """What is attended to: chunks of the prompts of some sequences, then one token of each."""

    dtype: np.dtype  # of activations
    num_kv_heads: int
    group: int
    head_dim: int
    cached_dtype: np.dtype | None = None  # of keys and values; None for `dtype`
    page_size: int = 16
    scoring: Scoring | None = None  # None for only the usual scale
    has_sinks: bool = False
    looks_ahead: bool = False  # whether tokens of a chunk see each other, but for its first and its last
    chunk: int = 32  # tokens of the first sequence in one step
    num_chunks: int = 2
    shorter: int = 5  # tokens that each other sequence's chunks lack
    num_seqs: int = 2

    @property
    def tolerance(self) -> float:
        """The largest difference that rounding explains."""
        is_one_byte = (self.cached_dtype or self.dtype).itemsize == 1
        return CACHED_TOLERANCE if is_one_byte else TOLERANCES[self.dtype.name]

    @property
    def pages_of_sequence(self) -> int:
        return -(-(self.chunk * self.num_chunks + 1) // self.page_size)

    def steps(self) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield the width of each step, and the numbers of cached and of new tokens of each sequence."""
        starts = [0] * self.num_seqs
        for index in range(self.num_chunks + 1):
            width = self.chunk if index < self.num_chunks else 1
            counts = [width, *[max(1, width - self.shorter)] * (self.num_seqs - 1)]
            yield width, starts, counts
            starts = [start + count for start, count in zip(starts, counts, strict=True)]


def largest_difference(kernel: AttentionKernel, case: Case) -> float:
    """Return the largest difference between a kernel's outputs and the reference's in float32; NaN if one is NaN.

    The difference is relative where an output is larger than one.
    """
    cached_dtype = case.cached_dtype or case.dtype
    wide = np.dtype(np.float32)
    with jax.default_matmul_precision("highest"):
        expected = _attend(PagedReference(), case, wide, cached_dtype if cached_dtype.itemsize == 1 else wide)
    actual = _attend(kernel, case, case.dtype, cached_dtype)
    return float(np.max(np.abs(actual - expected) / np.maximum(np.abs(expected), 1)))


def find_fault(kernel: AttentionKernel, case: Case) -> str | None:
    """Return what a kernel does wrong on the default device, as a predicate; None if it agrees with the reference."""
    try:
        difference = largest_difference(kernel, case)
    except Exception as error:  # compilers and drivers raise many kinds
        return f"failed: {type(error).__name__}: {str(error)[:200]}"
    if difference <= case.tolerance:  # a NaN is not
        return None
    return f"differs from the reference by {difference:.2e}, more than {case.tolerance:.2e}"


def _attend(kernel: AttentionKernel, case: Case, dtype: np.dtype, cached_dtype: np.dtype) -> np.ndarray:
    """Return the outputs of all tokens; inputs are rounded alike, whatever the dtype."""
    scoring = case.scoring or Scoring(case.head_dim**-0.5)
    layout = CacheLayout(case.num_seqs * case.pages_of_sequence, case.page_size)
    attend = jax.jit(functools.partial(kernel.attend, scoring=scoring), donate_argnums=3)
    cache = kernel.initial_cache(layout, num_kv_heads=case.num_kv_heads, head_dim=case.head_dim, dtype=cached_dtype)
    table = np.random.RandomState(1).permutation(layout.num_pages).reshape(case.num_seqs, -1).astype(np.int32)
    sinks = {}
    if case.has_sinks:
        scores = np.random.RandomState(2).randn(case.num_kv_heads, case.group)
        sinks["sinks"] = jnp.asarray(scores.astype(case.dtype).astype(dtype))
    outputs = []
    for index, (width, starts, counts) in enumerate(case.steps()):
        random, heads = np.random.RandomState(index), (case.num_seqs, width, case.num_kv_heads)
        sizes = ((*heads, case.group, case.head_dim), (*heads, case.head_dim), (*heads, case.head_dim))
        arrays = [jnp.asarray(random.randn(*size).astype(case.dtype).astype(dtype)) for size in sizes]
        paging = Paging(jnp.array(starts, jnp.int32), jnp.array(counts, jnp.int32), jnp.asarray(table))
        if case.looks_ahead and width > 1:
            paging = paging._replace(ahead=jnp.asarray(_ahead(width, counts)))
        attended, cache = attend(*arrays, cache, paging, **sinks)
        on_host = np.asarray(attended, np.float32)
        outputs += [on_host[seq, :count].reshape(-1) for seq, count in enumerate(counts)]
    return np.concatenate(outputs)


def _ahead(width: int, counts: list[int]) -> Int[np.ndarray, "seq token"]:
    """Return how many positions after its own each token of a chunk sees."""
    token, last = np.arange(width)[None], np.array(counts)[:, None] - 2
    return np.where((token > 0) & (token < last), last - token, 0).astype(np.int32)
