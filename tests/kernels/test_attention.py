"""A CPU's attention without C++ gives what the reference gives, over any order of prefill and decode steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.attention import Scoring
from service.kernels.blocks import BlockAttention
from service.kernels.cache_layout import CacheLayout
from service.kernels.kv import as_stored
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference
from tests.tolerances import SAME_ATTENTION_ATOL

NUM_SEQS, MAX_LEN, PAGE_SIZE = 5, 300, 12  # several blocks, none of them full, and pages that do not divide a block
LAYOUT = CacheLayout(num_pages=NUM_SEQS * MAX_LEN // PAGE_SIZE + 3, page_size=PAGE_SIZE)
NUM_KV_HEADS, GROUP, HEAD_DIM = 2, 3, 8
WIDTHS = (1, 4, 90)

VARIANTS = {
    "plain": Scoring(0.3),
    "window, soft cap": Scoring(0.3, sliding_window=40, soft_cap=2.0),
    "window of one": Scoring(0.3, sliding_window=1),
}
STORED = ("bfloat16", "int8", "float8_e4m3fn")
SINKS = np.array([[0.5, -1.0, 3.0], [0.0, 2.0, -4.0]], np.float32)  # [kv_head, group]


@functools.cache
def compiled_attend(kernel, scoring, has_sinks=False):
    """Compile each shape once for all tests."""
    return jax.jit(functools.partial(kernel.attend, scoring=scoring, sinks=jnp.asarray(SINKS) if has_sinks else None))


class Both:
    """The kernel and the reference, fed alike."""

    def __init__(self, scoring, dtype="float32", *, has_sinks=False):
        kernels = (PagedReference(), BlockAttention())
        self.caches = [
            kernel.initial_cache(LAYOUT, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, dtype=jnp.dtype(dtype))
            for kernel in kernels
        ]
        self.attend = [compiled_attend(kernel, scoring, has_sinks) for kernel in kernels]
        self.random = np.random.RandomState(5)
        self.lengths = np.zeros(NUM_SEQS, np.int32)
        # A sequence's pages in no order, so that a mistake in either index shows.
        self.table = self.random.permutation(LAYOUT.num_pages)[: NUM_SEQS * MAX_LEN // PAGE_SIZE]
        self.table = self.table.reshape(NUM_SEQS, -1).astype(np.int32)

    def step(self, width: int, counts: np.ndarray) -> None:
        """Run one step with so many tokens of each sequence."""
        heads = ((NUM_KV_HEADS, GROUP, HEAD_DIM), (NUM_KV_HEADS, HEAD_DIM), (NUM_KV_HEADS, HEAD_DIM))
        tokens = [self.random.randn(NUM_SEQS, width, *shape).astype(np.float32) for shape in heads]
        paging = Paging(*map(jnp.asarray, (self.lengths, counts, self.table)))
        outputs = []
        for index, attend in enumerate(self.attend):
            output, self.caches[index] = attend(*map(jnp.asarray, tokens), self.caches[index], paging)
            outputs.append(np.asarray(output))
        is_token = np.arange(width)[None] < counts[:, None]
        np.testing.assert_allclose(outputs[1][is_token], outputs[0][is_token], atol=SAME_ATTENTION_ATOL, rtol=0)
        assert np.isfinite(outputs[1]).all()
        self.lengths = self.lengths + counts

    def run(self, num_steps: int) -> None:
        """Run random steps of prefill and decode."""
        for _ in range(num_steps):
            width = int(self.random.choice(WIDTHS))
            counts = self.random.randint(0, width + 1, NUM_SEQS).astype(np.int32)
            self.lengths[self.lengths + counts > MAX_LEN] = 0  # the next owner; what the last one left must not show
            self.step(width, counts)


@pytest.mark.parametrize(
    "variant", ["window, soft cap", *(pytest.param(v, marks=pytest.mark.grid) for v in ("plain", "window of one"))]
)
def test_attention_in_blocks_gives_what_the_reference_gives(variant):
    Both(VARIANTS[variant]).run(25)


@pytest.mark.grid
def test_attention_in_blocks_with_sinks_gives_what_the_reference_gives():
    Both(VARIANTS["window, soft cap"], has_sinks=True).run(15)


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=pytest.mark.grid if d == "int8" else pytest.mark.slow) for d in STORED]
)
def test_a_cache_of_another_dtype_gives_what_the_reference_gives_with_the_same(dtype):
    Both(VARIANTS["window, soft cap"], dtype).run(10)


def test_a_sequence_that_finds_the_pages_of_another_reads_them():
    both = Both(VARIANTS["plain"])
    both.step(90, np.array([0, 61, 0, 0, 0], np.int32))
    both.table[4, :5] = both.table[1, :5]
    both.lengths[4] = 5 * PAGE_SIZE
    both.step(4, np.array([0, 1, 0, 0, 3], np.int32))


def test_a_sink_takes_its_share_of_the_softmax_for_nothing():
    random = np.random.RandomState(3)
    query = random.randn(1, 1, NUM_KV_HEADS, GROUP, HEAD_DIM).astype(np.float32)
    key, value = (random.randn(1, 1, NUM_KV_HEADS, HEAD_DIM).astype(np.float32) for _ in range(2))
    kernel = PagedReference()
    cache = kernel.initial_cache(LAYOUT, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, dtype=jnp.float32)
    paging = Paging(*(jnp.asarray(part, jnp.int32) for part in ([0], [1], [[0]])))
    arrays = [jnp.asarray(part) for part in (query, key, value)]
    attended, _ = compiled_attend(kernel, VARIANTS["plain"], has_sinks=True)(*arrays, cache, paging)
    # One position is seen, so its score and the sink share the whole.
    scores = np.einsum("hgd,hd->hg", query[0, 0], key[0, 0]) * VARIANTS["plain"].scale
    shares = 1 / (1 + np.exp(SINKS - scores))
    expected = shares[..., None] * value[0, 0][:, None]
    np.testing.assert_allclose(attended[0, 0], expected, atol=SAME_ATTENTION_ATOL, rtol=0)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_a_key_of_zeros_has_a_scale_and_is_stored_as_zeros(dtype):
    zeros = jnp.zeros((1, 2, 1, 4))
    for part in as_stored(zeros, zeros, jnp.dtype(dtype)):
        assert np.isfinite(np.asarray(part.astype(jnp.float32))).all()
