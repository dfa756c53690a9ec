"""The accelerators' kernels, emulated, give what the reference gives, and nothing of what they must not see."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.device.native.library import native_code
from service.kernels.attention import Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.native_pages import NativePagedAttention
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference
from service.kernels.sharded import ShardedAttention
from tests.kernels.emulated import BFLOAT16, FP8, INT8, RAGGED, TRITON
from tests.tolerances import SAME_ATTENTION_ATOL, SAME_ATTENTION_BFLOAT16_ATOL, SAME_ATTENTION_FLOAT16_ATOL

TOLERANCES = {
    "float32": SAME_ATTENTION_ATOL,
    "bfloat16": SAME_ATTENTION_BFLOAT16_ATOL,
    "float16": SAME_ATTENTION_FLOAT16_ATOL,
}
NUM_SEQS = 4
NUM_STRANGE_PAGES = 3  # that belong to nobody here


@dataclass(frozen=True)
class Case:
    """What is attended to, in which steps."""

    kernel: Any
    group: int = 1
    head_dim: int = 64
    page_size: int = 16
    num_pages: int = 4  # of each sequence
    # Tokens of each sequence; the longest of a step is its width, and each width is compiled.
    steps: tuple[tuple[int, ...], ...] = ((9, 20, 0, 1), (20, 7, 3, 0), (1, 1, 0, 1))
    num_kv_heads: int = 2
    dtype: str = "float32"
    kv_dtype: str | None = None  # of the cache, of the reference's too; None for dtype
    options: dict[str, Any] = field(default_factory=dict)
    has_sinks: bool = False

    @property
    def atol(self) -> float:
        """How far a kernel may be from the reference: a sum in another order differs by the root of its length."""
        is_rounded = self.dtype != "float32"  # to fewer bits than any order of sums changes
        return TOLERANCES[self.dtype] * (1 if is_rounded else max(1, self.head_dim / 128) ** 0.5)

    @property
    def layout(self) -> CacheLayout:
        num_pages = NUM_SEQS * self.num_pages + NUM_STRANGE_PAGES
        return CacheLayout(num_pages, self.page_size)


# Several turns of the loop, several splits, and splits of which some are empty.
LONG = {"page_size": 64, "num_pages": 6, "steps": ((150, 30, 0, 1), (150, 2, 150, 0), (1, 1, 0, 1))}
ON_TPU = {"page_size": 128, "num_pages": 2, "steps": ((150, 20, 0, 1), (30, 9, 90, 0), (1, 1, 0, 1))}

CASES = {
    "triton, groups of 4, wide heads, long": Case(TRITON, group=4, head_dim=128, num_kv_heads=1, **LONG),
    "triton, groups of 8, bfloat16": Case(TRITON, group=8, dtype="bfloat16", page_size=64, num_pages=1),
    "triton, one query head, float16, dimensions to pad, window": Case(
        TRITON, head_dim=80, dtype="float16", options={"sliding_window": 5}
    ),
    "triton, heads of 512, groups of 8, bfloat16, as Gemma 4": Case(
        TRITON, group=8, head_dim=512, num_kv_heads=1, dtype="bfloat16", page_size=64, num_pages=1
    ),
    "bfloat16 on a TPU, heads of 512, as Gemma 4": Case(
        BFLOAT16, dtype="bfloat16", group=8, head_dim=512, num_kv_heads=1, **ON_TPU
    ),
    "int8 on a TPU, heads of 512": Case(INT8, kv_dtype="int8", group=8, head_dim=512, num_kv_heads=2, **ON_TPU),
    "triton, odd pages, few dimensions, soft cap": Case(
        TRITON, head_dim=8, page_size=12, num_pages=5, options={"soft_cap": 1.5}
    ),
    "triton, groups of 3, long, window, soft cap": Case(
        TRITON, group=3, num_kv_heads=1, options={"sliding_window": 200, "soft_cap": 3.0}, **LONG
    ),
    "triton, groups of 3, sinks, window": Case(TRITON, group=3, has_sinks=True, options={"sliding_window": 5}),
    "triton, sinks, split": Case(
        TRITON,
        group=2,
        num_kv_heads=1,
        page_size=64,
        num_pages=5,
        steps=((300, 2, 0, 1), (1, 1, 0, 1)),
        has_sinks=True,
    ),
    "triton, int8 cache, split, soft cap": Case(
        TRITON,
        kv_dtype="int8",
        group=2,
        num_kv_heads=1,
        page_size=64,
        num_pages=5,
        steps=((300, 2, 0, 1), (1, 1, 0, 1)),
        options={"soft_cap": 1.5},
    ),
    "ragged, heads to pad": Case(RAGGED, num_kv_heads=3, group=2, head_dim=128),
    "triton, fp8 cache, dimensions to pad": Case(TRITON, kv_dtype="float8_e4m3fn", group=2, head_dim=24),
    "int8 on a TPU, heads and dimensions to pad, soft cap": Case(
        INT8,
        kv_dtype="int8",
        num_kv_heads=3,
        page_size=128,
        num_pages=3,
        steps=((150, 20, 0, 1), (130, 7, 129, 0), (1, 1, 0, 1)),
        options={"soft_cap": 1.5},
    ),
    "fp8 on a TPU, groups of 5, several blocks, window": Case(
        FP8,
        kv_dtype="float8_e4m3fn",
        group=5,
        page_size=128,
        num_pages=6,
        steps=((300, 20, 0, 128), (90, 300, 1, 0), (1, 1, 0, 1)),
        options={"sliding_window": 140},
    ),
    "int8 on a TPU, groups of 8, bfloat16, large pages": Case(
        INT8,
        kv_dtype="int8",
        group=8,
        head_dim=128,
        dtype="bfloat16",
        page_size=256,
        num_pages=2,
        steps=((40, 300, 0, 1), (1, 1, 0, 1)),
    ),
    "bfloat16 on a TPU, heads of 256, soft cap, as Gemma 2": Case(
        BFLOAT16, dtype="bfloat16", group=2, head_dim=256, num_kv_heads=4, options={"soft_cap": 5.0}, **ON_TPU
    ),
    "bfloat16 on a TPU, heads of 256, one key-value head, window, as Gemma 3": Case(
        BFLOAT16, dtype="bfloat16", group=4, head_dim=256, num_kv_heads=1, options={"sliding_window": 140}, **ON_TPU
    ),
    "bfloat16 on a TPU, heads and dimensions to pad": Case(
        BFLOAT16, dtype="bfloat16", head_dim=192, num_kv_heads=3, **ON_TPU
    ),
    "ragged, joined heads, groups of 3, several blocks, window": Case(
        RAGGED, group=3, num_kv_heads=4, page_size=32, num_pages=3, options={"sliding_window": 5}
    ),
    "fp8 on a TPU, four joined heads, one of them alone": Case(
        FP8, kv_dtype="float8_e4m3fn", group=2, head_dim=32, num_kv_heads=5, **ON_TPU
    ),
    "int8 on a TPU, heads of 256, several blocks, window": Case(
        INT8,
        kv_dtype="int8",
        group=8,
        head_dim=256,
        options={"sliding_window": 140},
        **ON_TPU,
    ),
    "ragged, dimensions to pad, window, soft cap": Case(
        RAGGED, group=3, page_size=32, num_pages=2, options={"sliding_window": 5, "soft_cap": 1.5}
    ),
    "ragged, groups of 8, bfloat16, several blocks": Case(
        RAGGED,
        group=8,
        head_dim=96,
        dtype="bfloat16",
        page_size=64,
        num_pages=10,
        steps=((40, 600, 0, 1), (1, 1, 0, 1)),
    ),
}
TWO_DEVICES = DeviceMesh(tuple(jax.devices()[:2]))
SPLIT = {"page_size": 64, "num_pages": 5, "steps": ((300, 2, 0, 1), (1, 1, 0, 1))}
CASES |= {
    "triton, int8 cache, split, bfloat16": Case(
        TRITON, kv_dtype="int8", group=2, num_kv_heads=1, dtype="bfloat16", **SPLIT
    ),
    "triton on two devices, window": Case(
        ShardedAttention(TRITON, TWO_DEVICES), group=2, options={"sliding_window": 5}
    ),
    "triton on two devices, sinks": Case(ShardedAttention(TRITON, TWO_DEVICES), group=2, has_sinks=True),
    "ragged on two devices": Case(ShardedAttention(RAGGED, TWO_DEVICES), num_kv_heads=4, group=2, head_dim=128),
    "int8 on two devices of a TPU": Case(
        ShardedAttention(INT8, TWO_DEVICES), kv_dtype="int8", num_kv_heads=4, group=2, head_dim=128, **ON_TPU
    ),
}
# Emulated, many blocks take their time.
LARGEST = (
    "triton, groups of 4, wide heads, long",
    "triton, groups of 3, long, window, soft cap",
    "ragged, dimensions to pad, window, soft cap",
    "ragged, groups of 8, bfloat16, several blocks",
)

ONE_A_KERNEL = (
    "triton, heads of 512, groups of 8, bfloat16, as Gemma 4",
    "triton, groups of 3, sinks, window",
    "ragged, heads to pad",
    "int8 on a TPU, heads and dimensions to pad, soft cap",
)
SLOW = pytest.mark.slow


class Steps:
    """The steps of a case through one kernel, all from the same random numbers."""

    def __init__(self, case: Case, kernel: Any, dtype: str) -> None:
        self.case, self.kernel, self.dtype = case, kernel, jnp.dtype(dtype)
        self.random = np.random.RandomState(7)
        layout = case.layout
        pages = self.random.permutation(layout.num_pages).astype(np.int32)
        self.table = pages[: NUM_SEQS * case.num_pages].reshape(NUM_SEQS, case.num_pages)
        self.strange = pages[NUM_SEQS * case.num_pages :]
        self.lengths = np.zeros(NUM_SEQS, np.int32)
        self.cache = kernel.initial_cache(
            layout, num_kv_heads=case.num_kv_heads, head_dim=case.head_dim, dtype=jnp.dtype(case.kv_dtype or dtype)
        )
        scoring = Scoring(case.head_dim**-0.5, **case.options)
        sinks = self.draw(case.num_kv_heads, case.group) if case.has_sinks else None
        self.attend = jax.jit(functools.partial(kernel.attend, scoring=scoring, sinks=sinks))

    def draw(self, *shape: int) -> jax.Array:
        # Numbers that every dtype here has, so that all kernels see the same.
        return jnp.asarray(self.random.randn(*shape), jnp.bfloat16).astype(self.dtype)

    def run(self, counts: tuple[int, ...], broken: int | None = None) -> list[np.ndarray]:
        """Run one step, and return what the tokens of each sequence get; `broken` is the sequence of a NaN key."""
        case, width = self.case, max(counts)
        query = self.draw(NUM_SEQS, width, case.num_kv_heads, case.group, case.head_dim)
        keys, values = (self.draw(NUM_SEQS, width, case.num_kv_heads, case.head_dim) for _ in range(2))
        if broken is not None:
            keys = keys.at[broken, counts[broken] // 2].set(jnp.nan)
        is_padding = np.arange(width)[None, :] >= np.array(counts)[:, None]
        keys = jnp.where(is_padding[:, :, None, None], jnp.nan, keys)  # nobody may see what is not written
        table = self.table.copy()
        for seq, end in enumerate(self.lengths + counts):
            table[seq, -(-end // case.page_size) :] = self.strange[0]  # never read past a sequence's end
        paging = Paging(*(jnp.asarray(a) for a in (self.lengths, np.array(counts, np.int32), table)))
        attended, self.cache = self.attend(query, keys, values, self.cache, paging)
        self.last = query, paging, counts
        self.lengths = self.lengths + np.array(counts, np.int32)
        wide = np.asarray(attended.astype(jnp.float32))
        assert case.kernel is not self.kernel or not wide[np.array(counts) == 0].any()  # rows of padding are zeros
        return [wide[seq, :count] for seq, count in enumerate(counts)]

    def read_again(self) -> list[np.ndarray]:
        """Attend once more from the tokens of the last step, whose keys and values are in the cache."""
        query, paging, counts = self.last
        attended, self.cache = self.attend(query, None, None, self.cache, paging)
        wide = np.asarray(attended.astype(jnp.float32))
        return [wide[seq, :count] for seq, count in enumerate(counts)]

    def spoil_what_is_not_theirs(self) -> None:
        """Put NaN wherever no sequence has written."""
        page, offset = np.divmod(np.arange(self.case.num_pages * self.case.page_size), self.case.page_size)
        is_written = np.zeros((self.case.layout.num_pages, self.case.page_size), bool)
        for seq, length in enumerate(self.lengths):
            is_written[self.table[seq, page[:length]], offset[:length]] = True

        def spoil(leaf: jax.Array) -> jax.Array:
            shape = [1] * leaf.ndim
            shape[0], shape[leaf.shape.index(self.case.page_size, 1)] = is_written.shape
            strange = 77 if jnp.issubdtype(leaf.dtype, jnp.integer) else jnp.nan
            return jnp.where(is_written.reshape(shape), leaf, jnp.full_like(leaf, strange))

        self.cache = jax.tree.map(spoil, self.cache)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ONE_A_KERNEL else SLOW if n in LARGEST else pytest.mark.grid) for n in CASES],
)
def test_a_kernel_gives_what_the_reference_gives_in_float32_and_sees_nothing_strange(name):
    case = CASES[name]
    theirs, ours = Steps(case, PagedReference(), "float32"), Steps(case, case.kernel, case.dtype)
    for counts in case.steps:
        ours.spoil_what_is_not_theirs()
        for expected, got in zip(theirs.run(counts), ours.run(counts), strict=True):
            np.testing.assert_allclose(got, expected, atol=case.atol, rtol=0)


WRITERS = (
    "triton, groups of 3, sinks, window",
    "triton, int8 cache, split, soft cap",
    "triton, fp8 cache, dimensions to pad",
    "triton on two devices, window",
    "ragged, heads to pad",
    "int8 on a TPU, heads and dimensions to pad, soft cap",
    "bfloat16 on a TPU, heads of 512, as Gemma 4",
)


@pytest.mark.parametrize("name", [WRITERS[0], *(pytest.param(name, marks=pytest.mark.grid) for name in WRITERS[1:])])
def test_a_step_changes_only_what_it_writes(name):
    case = CASES[name]
    steps = Steps(case, case.kernel, case.dtype)
    for counts in case.steps:
        before, starts = jax.tree.map(np.asarray, steps.cache), steps.lengths
        steps.run(counts)
        is_written = np.zeros((case.layout.num_pages, case.page_size), bool)
        for seq, (start, count) in enumerate(zip(starts, counts, strict=True)):
            page, offset = np.divmod(np.arange(start, start + count), case.page_size)
            is_written[steps.table[seq, page], offset] = True

        def check(old: np.ndarray, new: jax.Array, is_written: np.ndarray = is_written) -> None:
            axis = old.shape.index(case.page_size, 1)
            kept_before, kept = (np.moveaxis(np.asarray(leaf), axis, 1)[~is_written] for leaf in (old, new))
            np.testing.assert_array_equal(kept.view(np.uint8), kept_before.view(np.uint8))

        jax.tree.map(check, before, steps.cache)


READ_ONLY = {
    "native": Case(NativePagedAttention(), group=2, head_dim=16),
    "native, int8, window": Case(
        NativePagedAttention(), kv_dtype="int8", group=2, head_dim=16, options={"sliding_window": 5}
    ),
    "triton": Case(TRITON, group=2, num_kv_heads=1, head_dim=16, num_pages=2, options={"sliding_window": 5}),
    "triton, split": CASES["triton, sinks, split"],
    "ragged": CASES["ragged, heads to pad"],
    "bfloat16 on a TPU": CASES["bfloat16 on a TPU, heads of 512, as Gemma 4"],
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.startswith("native") or name == "triton" else pytest.mark.grid)
        for name in READ_ONLY
    ],
)
def test_a_layer_without_keys_of_its_own_reads_those_of_another_and_writes_nothing(name):
    case = READ_ONLY[name]
    if isinstance(case.kernel, NativePagedAttention) and not native_code().has_products:
        pytest.skip("this machine has no native code")
    steps = Steps(case, case.kernel, case.dtype)
    for counts in case.steps:
        steps.spoil_what_is_not_theirs()
        expected = steps.run(counts)
        kept = jax.tree.map(np.asarray, steps.cache)
        for seq, got in enumerate(steps.read_again()):
            np.testing.assert_allclose(got, expected[seq], atol=case.atol, rtol=0)
        jax.tree.map(np.testing.assert_array_equal, kept, steps.cache)


@pytest.mark.parametrize("kernel", [TRITON, RAGGED], ids=["triton", "ragged"])
def test_a_broken_key_breaks_its_own_sequence_alone(kernel):
    steps = ((9, 12, 0, 8), (1, 1, 0, 1))
    case = Case(kernel, group=2, num_kv_heads=1, head_dim=16, num_pages=2)
    theirs, ours = Steps(case, PagedReference(), "float32"), Steps(case, kernel, "float32")
    for number, counts in enumerate(steps):
        broken = 1 if number == 0 else None
        for seq, (expected, got) in enumerate(zip(theirs.run(counts, broken), ours.run(counts, broken), strict=True)):
            assert np.isnan(expected).any() == (seq == 1)
            is_seen = np.isnan(expected)
            assert np.isnan(got[is_seen]).all()
            if kernel is TRITON or seq != 1:  # the TPU's also breaks earlier tokens of the same sequence
                np.testing.assert_allclose(got[~is_seen], expected[~is_seen], atol=SAME_ATTENTION_ATOL, rtol=0)


def test_a_broken_key_that_left_the_window_is_forgotten():
    case = Case(TRITON, head_dim=16, num_kv_heads=1, num_pages=2, options={"sliding_window": 4})
    steps = Steps(case, TRITON, "float32")
    assert np.isnan(steps.run((9, 12, 0, 8), broken=1)[1]).any()
    assert all(np.isfinite(rows).all() for rows in steps.run((1, 1, 0, 1)))
