"""Attention in C++ over pages, against the reference, in both kinds of instructions."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.device.native.library import NativeCode, native_code
from service.kernels.attention import Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.kv import has_scales
from service.kernels.limits import NATIVE_CACHED_DTYPES, NATIVE_LARGEST_HEAD_DIM, serves_attention
from service.kernels.native_pages import NativePagedAttention
from service.kernels.paging import Paging
from service.kernels.reference import KVPages, PagedReference

pytestmark = pytest.mark.skipif(not native_code().has_products, reason="no native code for this processor")

KERNEL, REFERENCE = NativePagedAttention(), PagedReference()


class Step:
    """Random sequences whose pages lie in any order."""

    def __init__(
        self,
        starts: list[int],
        tokens: list[int],
        heads: tuple[int, int, int],
        page_size: int,
        dtype: str,
        block: int = 0,
    ) -> None:
        """Draw them.

        Args:
            starts: positions that are cached, of each.
            tokens: of the step, of each.
            heads: for keys and values, queries of each, and their width.
            page_size: positions of a page.
            dtype: of the cache.
            block: tokens, from the second on, that see each other.
        """
        self.block = block
        self.random = np.random.default_rng(0)
        self.starts, self.tokens, self.dtype, self.page_size = starts, tokens, dtype, page_size
        num_kv_heads, group_size, head_dim = heads
        width, num_seqs = max(1, *tokens), len(starts)
        pages_of = [-(-(start + count) // page_size) for start, count in zip(starts, tokens, strict=True)]
        self.num_pages = sum(pages_of) + 3
        ids = iter(self.random.permutation(self.num_pages))
        table_width = max(1, *pages_of) + 1
        self.table = np.array([[next(ids) for _ in range(n)] + [0] * (table_width - n) for n in pages_of], np.int32)
        shape = (self.num_pages, num_kv_heads, page_size, head_dim)
        self.cache = self.pages(shape)
        self.query = self.normal(num_seqs, width, num_kv_heads, group_size, head_dim)
        self.keys, self.values = (self.normal(num_seqs, width, num_kv_heads, head_dim) for _ in range(2))

    def normal(self, *shape: int) -> jax.Array:
        return jnp.asarray(self.random.standard_normal(shape, np.float32))

    def pages(self, shape: tuple[int, ...]) -> KVPages:
        if not has_scales(self.dtype):
            return KVPages(*(self.normal(*shape).astype(self.dtype) for _ in range(2)))
        octets = [jnp.asarray(self.random.integers(-100, 100, shape), self.dtype) for _ in range(2)]
        scales = [jnp.asarray(self.random.uniform(0.005, 0.02, (*shape[:-1], 1)), jnp.float32) for _ in range(2)]
        return KVPages(*octets, *scales)

    def with_dead_positions(self, fill: float, window: int | None) -> KVPages:
        """Return the cache with a value at each position that no token of the step sees."""
        is_alive = np.zeros((self.num_pages, self.page_size), bool)
        for table, start, count in zip(self.table, self.starts, self.tokens, strict=True):
            for position in range(max(0, start - (window or start + 1) + 1) if count else start, start):
                is_alive[table[position // self.page_size], position % self.page_size] = True
        mask = jnp.asarray(is_alive)[:, None, :, None]

        def kill(array: jax.Array) -> jax.Array:
            value = fill if array.dtype in (jnp.float32, jnp.bfloat16) else 100
            return jnp.where(mask, array, jnp.asarray(value, array.dtype))

        return self.cache.map(kill)

    @property
    def paging(self) -> Paging:
        numbers = self.starts, self.tokens, self.table
        paging = Paging(*(jnp.asarray(each, jnp.int32) for each in numbers))
        if self.block == 0:
            return paging
        token = np.arange(self.query.shape[1])[None]
        last = np.minimum(self.block, np.array(self.tokens)[:, None] - 1)
        ahead = np.where((token > 0) & (token < last), last - token, 0)
        return paging._replace(ahead=jnp.asarray(ahead, jnp.int32))

    def run(self, cache: KVPages, scoring: Scoring) -> tuple[np.ndarray, KVPages]:
        attend = jax.jit(lambda *arguments: KERNEL.attend(*arguments, scoring=scoring))
        attended, pages = attend(self.query, self.keys, self.values, cache, self.paging)
        return np.asarray(attended), pages

    def expected(self, scoring: Scoring) -> tuple[np.ndarray, KVPages]:
        attend = jax.jit(lambda *arguments: REFERENCE.attend(*arguments, scoring=scoring))
        attended, pages = attend(self.query, self.keys, self.values, self.cache, self.paging)
        return np.asarray(attended), pages

    @property
    def is_token(self) -> np.ndarray:
        return np.arange(self.query.shape[1])[None] < np.asarray(self.tokens)[:, None]


def same_bits(one: KVPages, other: KVPages) -> bool:
    pairs = zip(one, other, strict=True)
    return all(mine is None or np.asarray(mine).tobytes() == np.asarray(theirs).tobytes() for mine, theirs in pairs)


STEPS = st.fixed_dictionaries(
    {
        "sequences": st.lists(st.tuples(st.integers(0, 700), st.integers(0, 40)), min_size=1, max_size=4),
        "heads": st.tuples(st.integers(1, 3), st.integers(1, 9), st.sampled_from([1, 7, 16, 24, 64, 80, 128])),
        "page_size": st.sampled_from([1, 3, 16, 64, 100]),
        "dtype": st.sampled_from(NATIVE_CACHED_DTYPES),
        "window": st.sampled_from([None, 1, 5, 64, 200]),
        "soft_cap": st.sampled_from([None, None, 4.0]),
        "fill": st.sampled_from([np.nan, np.inf, -np.inf]),
        "block": st.sampled_from([0, 3, 30]),
    }
)


@settings(max_examples=6, deadline=None)
@given(STEPS)
@example(
    {"sequences": [(1030, 1), (0, 1), (3, 0)], "heads": (3, 3, 64), "page_size": 16, "dtype": "float32", "window": None,
     "soft_cap": None, "fill": np.nan, "block": 0}
)  # fmt: skip
@example(
    {"sequences": [(1000, 70)], "heads": (2, 8, 128), "page_size": 64, "dtype": "bfloat16", "window": 600,
     "soft_cap": None, "fill": np.inf, "block": 0}
)  # fmt: skip
@example(
    {"sequences": [(30, 64), (500, 64), (7, 2)], "heads": (2, 5, 64), "page_size": 16, "dtype": "float32", "window": 64,
     "soft_cap": None, "fill": np.nan, "block": 60}
)  # fmt: skip
def test_every_shape_gives_what_the_reference_gives_and_dead_positions_are_never_read(drawn):
    starts, tokens = (list(each) for each in zip(*drawn["sequences"], strict=True))
    step = Step(starts, tokens, drawn["heads"], drawn["page_size"], drawn["dtype"], drawn["block"])
    scoring = Scoring(drawn["heads"][2] ** -0.5, drawn["window"], drawn["soft_cap"])
    expected, expected_pages = step.expected(scoring)
    made, pages = step.run(step.cache, scoring)
    assert same_bits(pages, expected_pages)
    np.testing.assert_allclose(made[step.is_token], expected[step.is_token], atol=2e-5, rtol=0)
    assert not made[~step.is_token].any()
    beside_nans, _ = step.run(step.with_dead_positions(drawn["fill"], drawn["window"]), scoring)
    np.testing.assert_array_equal(beside_nans, made)


@pytest.mark.parametrize("dtype", NATIVE_CACHED_DTYPES)
@pytest.mark.parametrize("start", [*(pytest.param(start, marks=pytest.mark.grid) for start in (0, 500)), 1500])
def test_a_token_has_the_same_result_in_every_batch_and_every_cut_into_steps(dtype: str, start: int):
    """A long context of few rows is computed in parallel splits, which many rows are not."""
    scoring = Scoring(0.125, sliding_window=1200)
    whole = Step([start, 90], [40, 40], (2, 3, 64), 16, dtype)
    expected, _ = whole.run(whole.cache, scoring)
    cache = whole.cache
    for first, after in [(0, 1), (1, 4), (4, 33), (33, 40)]:
        chunk = Step([start + first], [after - first], (2, 3, 64), 16, dtype)
        chunk.query = whole.query[:1, first:after]
        chunk.keys, chunk.values = whole.keys[:1, first:after], whole.values[:1, first:after]
        chunk.table = whole.table[:1]
        made, cache = chunk.run(cache, scoring)
        np.testing.assert_array_equal(made, expected[:1, first:after])


@pytest.mark.parametrize("dtype", NATIVE_CACHED_DTYPES)
@pytest.mark.parametrize(
    "tokens",
    [pytest.param([1, 1, 0], marks=pytest.mark.grid), pytest.param([1, 0, 70], marks=pytest.mark.grid), [3, 40, 2]],
)
def test_every_token_sees_all_of_its_memory_and_nothing_after_it(dtype: str, tokens: list[int]):
    """A long memory of few rows is computed in parallel splits, which many rows are not."""
    step = Step([1500, 45, 64], tokens, (2, 3, 64), 16, dtype)
    attend = jax.jit(
        lambda kernel, cache: kernel.attend_memory(step.query, cache, step.paging, scale=0.125), static_argnums=0
    )
    expected, made = (np.asarray(attend(kernel, step.cache)) for kernel in (REFERENCE, KERNEL))
    np.testing.assert_allclose(made[step.is_token], expected[step.is_token], atol=2e-5, rtol=0)
    assert not made[~step.is_token].any()
    np.testing.assert_array_equal(attend(KERNEL, step.with_dead_positions(np.nan, None)), made)
    alone = Step([1500], tokens[:1], (2, 3, 64), 16, dtype)
    alone.query, alone.table = step.query[:1, : tokens[0]], step.table[:1]
    paging = alone.paging
    of_one = jax.jit(lambda query, cache: KERNEL.attend_memory(query, cache, paging, scale=0.125))
    np.testing.assert_array_equal(of_one(alone.query, step.cache), made[:1, : tokens[0]])


@pytest.mark.parametrize("start", [3, 1500])
def test_sinks_take_their_share_of_the_softmax(start: int):
    step = Step([start], [2], (2, 3, 16), 8, "float32")
    sinks = jnp.asarray(np.random.default_rng(1).standard_normal((2, 3), np.float32) * 5)
    arguments = (step.query, step.keys, step.values, step.cache, step.paging)
    made, expected = (
        kernel.attend(*arguments, scoring=Scoring(0.25), sinks=sinks)[0] for kernel in (KERNEL, REFERENCE)
    )
    np.testing.assert_allclose(made, expected, atol=2e-6, rtol=0)


def test_sequences_share_the_pages_of_a_prefix():
    scoring = Scoring(0.25)
    step = Step([32, 32, 40], [1, 1, 2], (2, 2, 16), 8, "float32")
    step.table[:, :4] = step.table[0, :4]
    made, pages = step.run(step.cache, scoring)
    expected, expected_pages = step.expected(scoring)
    assert same_bits(pages, expected_pages)
    np.testing.assert_allclose(made[step.is_token], expected[step.is_token], atol=1e-6, rtol=0)


def test_a_nan_of_a_sequence_reaches_no_other_and_a_later_key_no_earlier_token():
    scoring = Scoring(0.25)
    step = Step([20, 20], [6, 6], (2, 2, 16), 8, "float32")
    expected, _ = step.run(step.cache, scoring)
    step.keys = step.keys.at[0, 3].set(jnp.nan)
    made, _ = step.run(step.cache, scoring)
    np.testing.assert_array_equal(made[1], expected[1])
    np.testing.assert_array_equal(made[0, :3], expected[0, :3])
    assert np.isnan(made[0, 3:]).all()


def test_the_pages_are_updated_in_place():
    step = Step([20], [1], (2, 2, 16), 8, "float32")
    attend = jax.jit(lambda *arguments: KERNEL.attend(*arguments, scoring=Scoring(0.25)), donate_argnums=3)
    place = step.cache.keys.unsafe_buffer_pointer()
    _, pages = attend(step.query, step.keys, step.values, step.cache, step.paging)
    assert pages.keys.unsafe_buffer_pointer() == place


@pytest.mark.parametrize("dtype", NATIVE_CACHED_DTYPES)
def test_an_empty_cache_is_that_of_the_reference(dtype: str):
    layout = CacheLayout(num_pages=5, page_size=4)
    caches = [kernel.initial_cache(layout, num_kv_heads=2, head_dim=8, dtype=dtype) for kernel in (KERNEL, REFERENCE)]
    assert same_bits(*caches)
    assert [None if each is None else each.dtype for each in caches[0]] == [
        None if each is None else each.dtype for each in caches[1]
    ]


def test_other_caches_and_processors_are_the_references():
    assert serves_attention(NativeCode.AVX2, np.dtype(np.float32), NATIVE_LARGEST_HEAD_DIM)
    assert not serves_attention(NativeCode.AVX2, np.dtype(np.float32), NATIVE_LARGEST_HEAD_DIM + 1)
    assert not serves_attention(NativeCode.AVX2, np.dtype(np.float16), 64)
    assert not serves_attention(NativeCode.BASE, np.dtype(np.float32), 64)


@pytest.mark.slow
@pytest.mark.skipif(native_code() in (NativeCode.AVX2, NativeCode.NEON), reason="these are the tests above")
def test_all_of_this_holds_with_the_instructions_of_other_processors():
    variables = {**os.environ, "XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "PYTEST_ADDOPTS": "", "PYTEST_XDIST_WORKER": ""}
    names = "every_shape or every_batch or every_token or prefix or nan_of"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__, "-k", names]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
