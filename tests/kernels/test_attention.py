"""Every kernel gives what the reference gives, over any order of prefill and decode steps of any slots."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.attention import Scoring
from service.kernels.cache_layout import CacheLayout, CopyKind
from service.kernels.cpu import RowAttention
from service.kernels.paging import Paging, RowPages
from service.kernels.reference import PagedReference
from tests.tolerances import SAME_ATTENTION_ATOL

LAYOUT = CacheLayout(num_pages=48, page_size=4, slot_sizes=(1, 3, 5), context_sizes=(8, 20, 36), has_slot_cache=True)
NUM_KV_HEADS, GROUP, HEAD_DIM = 2, 3, 8
PAGES_PER_SLOT = LAYOUT.context_sizes[-1] // LAYOUT.page_size
CHUNKS = (4, 12)

KERNELS = {"rows": RowAttention(LAYOUT)}
PLAIN = Scoring(0.3)
# How positions are scored, and in steps of which shapes: how slots and contexts are cut is the same for any scoring.
VARIANTS = {
    "plain": (PLAIN, LAYOUT.slot_sizes[:2], LAYOUT.context_sizes[::2]),
    "window, soft cap": (
        Scoring(0.3, sliding_window=6, soft_cap=2.0),
        LAYOUT.slot_sizes[-1:],
        LAYOUT.context_sizes[-1:],
    ),
    "plain, all sizes": (PLAIN, LAYOUT.slot_sizes, LAYOUT.context_sizes),
    "window, soft cap, all sizes": (
        Scoring(0.3, sliding_window=6, soft_cap=2.0),
        LAYOUT.slot_sizes,
        LAYOUT.context_sizes,
    ),
    "window of one": (Scoring(0.3, sliding_window=1), LAYOUT.slot_sizes[-1:], LAYOUT.context_sizes[-1:]),
}


STORED = ("bfloat16", "int8", "float8_e4m3fn")
SINKS = np.array([[0.5, -1.0, 3.0], [0.0, 2.0, -4.0]], np.float32)  # [kv_head, group]


@functools.cache
def compiled_attend(kernel, scoring, has_sinks):
    """Compile each shape once for all tests."""
    return jax.jit(functools.partial(kernel.attend, scoring=scoring, sinks=jnp.asarray(SINKS) if has_sinks else None))


@functools.cache
def compiled_copy(kernel, kind):
    """Compile each copy once for all tests."""
    return jax.jit(functools.partial(kernel.copy_pages, kind))


class Both:
    """A kernel and the reference, fed alike."""

    def __init__(self, kernel, scoring, context_sizes=LAYOUT.context_sizes, dtype="float32", *, has_sinks=False):
        self.context_sizes = context_sizes
        self.kernels = (PagedReference(), kernel)
        self.caches = [
            k.initial_cache(LAYOUT, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, dtype=jnp.dtype(dtype))
            for k in self.kernels
        ]
        self.attend = [compiled_attend(k, scoring, has_sinks) for k in self.kernels]
        self.in_prefill_row = None  # the slot whose tokens it holds
        self.random = np.random.RandomState(5)
        self.lengths = [0] * LAYOUT.num_slots
        # A slot's pages in no order, so that a mistake in either index shows.
        self.pages = self.random.permutation(LAYOUT.num_pages)[: LAYOUT.num_slots * PAGES_PER_SLOT]
        self.pages = self.pages.reshape(LAYOUT.num_slots, PAGES_PER_SLOT)

    def copy(self, kind: CopyKind, slot: int, pages: range) -> None:
        """Copy some of a slot's pages in the kernel's cache; the reference reads the pages in place."""
        ids = np.full(PAGES_PER_SLOT, LAYOUT.num_pages, np.int32)
        ids[: len(pages)] = self.pages[slot, pages.start : pages.stop]
        row_pages = RowPages(*(jnp.asarray(part, jnp.int32) for part in (slot, pages.start, ids)))
        [self.caches[1]] = compiled_copy(self.kernels[1], kind)([self.caches[1]], row_pages)

    def prefill(self, width: int, slot: int, count: int) -> None:
        """Run a step of one prompt, with the copies that an engine makes."""
        begin = self.lengths[slot]
        if begin and self.in_prefill_row != slot:
            self.copy(CopyKind.EXTRACT, slot, range(-(-begin // LAYOUT.page_size)))
        self.step(width, {0: (slot, count)}, num_rows=1)
        self.in_prefill_row = slot
        self.copy(CopyKind.INSERT, slot, range(begin // LAYOUT.page_size, -(-self.lengths[slot] // LAYOUT.page_size)))

    def step(self, width: int, rows: dict[int, tuple[int, int]], num_rows: int) -> None:
        """Run one step; `rows` says for a row its slot and its number of tokens."""
        if self.in_prefill_row in {slot for slot, _ in rows.values()}:
            self.in_prefill_row = None  # the slot gets what the prefill row has not
        start, num_tokens = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
        slots = np.full(num_rows, LAYOUT.num_slots, np.int32)
        reach = max(self.lengths[slot] + count for slot, count in rows.values())
        context = next(size for size in self.context_sizes if size >= reach)
        table = np.zeros((num_rows, context // LAYOUT.page_size), np.int32)
        for row, (slot, count) in rows.items():
            start[row], num_tokens[row], slots[row] = self.lengths[slot], count, slot
            table[row] = self.pages[slot, : table.shape[1]]
            self.lengths[slot] += count
        # The reference reads whole tables of all slots at the longest chunk, so it is compiled for one shape alone.
        whole = np.zeros((LAYOUT.num_slots, PAGES_PER_SLOT), np.int32)
        for row, (slot, _) in rows.items():
            whole[row] = self.pages[slot]
        heads = ((NUM_KV_HEADS, GROUP, HEAD_DIM), (NUM_KV_HEADS, HEAD_DIM), (NUM_KV_HEADS, HEAD_DIM))
        tokens = [self.random.randn(num_rows, width, *shape).astype(np.float32) for shape in heads]
        padding = LAYOUT.num_slots - num_rows
        padded = (
            [np.pad(part, [(0, padding), (0, CHUNKS[-1] - width), *[(0, 0)] * (part.ndim - 2)]) for part in tokens],
            Paging(*(np.pad(part, (0, padding)) for part in (start, num_tokens)), whole, np.pad(slots, (0, padding))),
        )
        outputs = []
        for index, (of_tokens, paging) in enumerate((padded, (tokens, Paging(start, num_tokens, table, slots)))):
            arrays = jax.tree.map(jnp.asarray, (*of_tokens, self.caches[index], paging))
            output, self.caches[index] = self.attend[index](*arrays)
            outputs.append(np.asarray(output)[:num_rows, :width])
        is_token = np.arange(width)[None] < num_tokens[:, None]
        np.testing.assert_allclose(outputs[1][is_token], outputs[0][is_token], atol=SAME_ATTENTION_ATOL, rtol=0)


@pytest.mark.parametrize("variant", [pytest.param(v, marks=pytest.mark.slow) if "all" in v else v for v in VARIANTS])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_gives_what_the_reference_gives(name, variant):
    scoring, slot_sizes, context_sizes = VARIANTS[variant]
    run_steps(Both(KERNELS[name], scoring, context_sizes), slot_sizes, 60)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_with_sinks_gives_what_the_reference_gives(name):
    scoring, slot_sizes, context_sizes = VARIANTS["window, soft cap"]
    run_steps(Both(KERNELS[name], scoring, context_sizes, has_sinks=True), slot_sizes, 40)


def test_a_sink_takes_its_share_of_the_softmax_for_nothing():
    random = np.random.RandomState(3)
    query = random.randn(1, 1, NUM_KV_HEADS, GROUP, HEAD_DIM).astype(np.float32)
    key, value = (random.randn(1, 1, NUM_KV_HEADS, HEAD_DIM).astype(np.float32) for _ in range(2))
    kernel = PagedReference()
    cache = kernel.initial_cache(LAYOUT, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, dtype=jnp.float32)
    paging = Paging(*(jnp.asarray(part, jnp.int32) for part in ([0], [1], [[0]], [0])))
    arrays = [jnp.asarray(part) for part in (query, key, value)]
    attended, _ = kernel.attend(*arrays, cache, paging, scoring=PLAIN, sinks=jnp.asarray(SINKS))
    # One position is seen, so its score and the sink share the whole.
    scores = np.einsum("hgd,hd->hg", query[0, 0], key[0, 0]) * PLAIN.scale
    shares = 1 / (1 + np.exp(SINKS - scores))
    expected = shares[..., None] * value[0, 0][:, None]
    np.testing.assert_allclose(attended[0, 0], expected, atol=SAME_ATTENTION_ATOL, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("name", KERNELS)
def test_a_cache_of_another_dtype_gives_what_the_reference_gives_with_the_same(name, dtype):
    scoring, slot_sizes, context_sizes = VARIANTS["window, soft cap"]
    run_steps(Both(KERNELS[name], scoring, context_sizes[-1:], dtype), (1, *slot_sizes), 20)


def run_steps(both: Both, slot_sizes: tuple[int, ...], num_steps: int) -> None:
    """Run random steps of prefill and decode."""
    for _ in range(num_steps):
        if both.random.rand() < 0.4:
            width = int(both.random.choice(CHUNKS))
            slot = both.random.randint(LAYOUT.num_slots)
            if both.lengths[slot] + width > LAYOUT.context_sizes[-1]:
                both.lengths[slot] = 0  # the next owner of the slot; what the last one left must not show
            both.prefill(width, slot, both.random.randint(1, width + 1))
        else:
            num_rows = int(both.random.choice(slot_sizes))
            active = [s for s in range(num_rows) if both.random.rand() < 0.7] or [0]
            for slot in active:
                if both.lengths[slot] >= LAYOUT.context_sizes[-1]:
                    both.lengths[slot] = 0
            both.step(1, {slot: (slot, 1) for slot in active}, num_rows=num_rows)


@pytest.mark.parametrize("name", KERNELS)
def test_prompts_of_one_step_are_computed_in_their_slots(name):
    both = Both(KERNELS[name], PLAIN)
    both.step(12, {0: (3, 12), 1: (0, 5)}, num_rows=3)  # with a row of padding
    both.step(12, {0: (0, 9), 1: (2, 3), 2: (3, 12)}, num_rows=3)
    both.prefill(4, 3, 2)  # alone from here on, in the prefill row
    both.step(1, {slot: (slot, 1) for slot in (0, 2, 3)}, num_rows=5)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KERNELS)
def test_a_prefix_copied_through_pages_gives_what_the_original_gives(name, dtype):
    kernel = KERNELS[name]
    both = Both(kernel, PLAIN, dtype=dtype)
    both.prefill(12, 1, 11)
    both.prefill(12, 1, 9)
    # Three of the five pages that slot 1 has filled; the reference shares them in place.
    both.copy(CopyKind.SAVE, 1, range(1, 3))
    both.copy(CopyKind.SAVE, 1, range(1))
    both.pages[4, :3] = both.pages[1, :3]
    both.copy(CopyKind.RESTORE, 4, range(1))
    both.copy(CopyKind.RESTORE, 4, range(1, 3))
    both.lengths[4] = 3 * LAYOUT.page_size
    both.prefill(4, 4, 3)
    both.step(1, {1: (1, 1), 4: (4, 1)}, num_rows=5)
