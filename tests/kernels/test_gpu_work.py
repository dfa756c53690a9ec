"""Sequences of any lengths share a GPU's programs: the list is whole, balanced and no one else's business."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.kernels import gpu
from service.kernels.attention import Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.gpu_work import Item, SplitSpan, WorkTile, item_at, span_of, split_of, work_list
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference
from tests.kernels.emulated import TRITON
from tests.tolerances import SAME_ATTENTION_ATOL

PAGE_SIZE = 16
PLAIN = Scoring(0.25)
LONG = 32 * 1024
# Of cached positions: none, one, and those around pages, tile steps and splits.
EDGES = sorted({0, 1, *(size + more for size in (16, 64, 128, 256, 512) for more in (-1, 0, 1))})
LENGTHS = st.sampled_from(EDGES) | st.integers(0, 700)
# 64 slots of Llama 3.1 8B with 32k tokens of context.
OF_8B = WorkTile(
    16, 64, 64, 1, True, 4, PAGE_SIZE, Scoring(1.0), np.dtype(jnp.bfloat16), most_splits=32, shortest_split=8
)
TILES = [
    OF_8B,
    replace(OF_8B, scoring=Scoring(1.0, sliding_window=300)),
    replace(OF_8B, num_seqs=3, width=40, most_splits=4, shortest_split=1),
]


@pytest.mark.parametrize("tile", TILES, ids=["decode", "window", "prompts"])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_the_list_has_every_tile_step_once_and_a_sequence_has_the_same_splits_alone(tile, data):
    size = tile.num_seqs
    start = np.array(data.draw(st.lists(LENGTHS | st.just(LONG), min_size=size, max_size=size)), np.int32)
    num_tokens = np.array(data.draw(st.lists(st.integers(0, tile.width), min_size=size, max_size=size)), np.int32)
    item, taken, spans = take_all(tile, start, num_tokens)
    is_first, is_last = item.split == 0, item.split == item.num_splits - 1
    assert np.array_equal(item.block[is_first], np.arange(size * tile.num_blocks))
    assert np.array_equal(taken.first[is_first], spans.first)
    assert np.array_equal(taken.last[is_last], spans.last)
    assert np.array_equal(taken.first[~is_first], taken.last[~is_last])
    assert np.all(taken.first <= taken.last)
    seq = data.draw(st.integers(0, size - 1))
    alone = np.zeros((2, size), np.int32)
    alone[:, seq] = start[seq], num_tokens[seq]
    of_alone, of_alone_taken, _ = take_all(tile, *alone)
    mine, mine_alone = (of.block // tile.num_blocks == seq for of in (item, of_alone))
    assert np.array_equal(of_alone_taken.last[mine_alone], taken.last[mine])


def test_no_program_takes_more_of_one_long_sequence_among_short_ones_than_its_share():
    start = np.array([LONG] + [200] * 32 + [0] * 31, np.int32)
    item, taken, _ = take_all(OF_8B, start, (start > 0).astype(np.int32))
    assert OF_8B.num_positions * max(taken.last - taken.first) == 1024
    assert len(item.block) <= gpu.ENOUGH_PROGRAMS // 8  # each has a program to itself


def take_all(tile: WorkTile, start: np.ndarray, num_tokens: np.ndarray) -> tuple[Item, SplitSpan, SplitSpan]:
    """Return the items of a list, what each reads, and what each block reads."""
    paging = Paging(jnp.asarray(start), jnp.asarray(num_tokens), jnp.zeros((len(start), 0), jnp.int32))
    ends, of_items, spans = _take_all(tile)(paging)
    item, taken = jax.tree.map(lambda part: np.asarray(part)[: int(ends[-1])], of_items)
    return item, taken, jax.tree.map(np.asarray, spans)


@functools.cache
def _take_all(tile: WorkTile):
    def of_block(block: jax.Array, paging: Paging) -> SplitSpan:
        seq = block // tile.num_blocks
        return span_of(block % tile.num_blocks, paging.start[seq], paging.num_tokens[seq], None, tile)

    def of_index(index: jax.Array, ends: jax.Array, paging: Paging) -> tuple[Item, SplitSpan]:
        item = item_at(index, ends)
        return item, split_of(of_block(item.block, paging), item.split, tile)

    @jax.jit
    def run(paging: Paging) -> tuple[jax.Array, tuple[Item, SplitSpan], SplitSpan]:
        ends = work_list(paging, tile)
        of_items = jax.vmap(of_index, (0, None, None))(jnp.arange(tile.most_items), ends, paging)
        return ends, of_items, jax.vmap(of_block, (0, None))(jnp.arange(len(ends)), paging)

    return run


@dataclass(frozen=True)
class Batch:
    """Sequences that decode, and how."""

    num_seqs: int
    context: int
    group: int = 2
    has_sinks: bool = False
    scoring: Scoring = PLAIN

    def run(self, starts: np.ndarray, num_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the reference gives and what the kernel gives, whose dead positions hold NaN."""
        random, head_dim = np.random.RandomState(3), 16
        pages = [-(-(int(start) + 1) // PAGE_SIZE) for start in starts]
        layout = CacheLayout(1 + self.num_pages, PAGE_SIZE)
        table = np.zeros((self.num_seqs, self.context // PAGE_SIZE), np.int32)  # page 0 is nobody's
        for seq, first in enumerate(np.cumsum([1, *pages])[:-1]):
            table[seq, : pages[seq]] = np.arange(first, first + pages[seq])
        query, keys, values = (
            jnp.asarray(random.randn(self.num_seqs, 1, 1, *size), jnp.float32)
            for size in ((self.group, head_dim), (head_dim,), (head_dim,))
        )
        cache = PagedReference().initial_cache(layout, num_kv_heads=1, head_dim=head_dim, dtype=jnp.float32)
        cache = cache.map(lambda part: jnp.asarray(random.randn(*part.shape), part.dtype))
        is_dead = np.ones((layout.num_pages, PAGE_SIZE), bool)
        for seq, start in enumerate(starts):
            page, offset = np.divmod(np.arange(start), PAGE_SIZE)
            is_dead[table[seq, page], offset] = False
        spoiled = cache.map(lambda part: jnp.where(is_dead[:, None, :, None], jnp.nan, part))
        paging = Paging(*(jnp.asarray(part) for part in (starts, num_tokens, table)))
        sinks = jnp.asarray(random.randn(1, self.group), jnp.float32) if self.has_sinks else None
        expected, _ = attend_with(PagedReference(), self.scoring)(query, keys, values, cache, paging, sinks=sinks)
        attended, _ = attend_with(TRITON, self.scoring)(query, keys, values, spoiled, paging, sinks=sinks)
        is_used = num_tokens > 0
        return np.asarray(expected)[is_used], np.asarray(attended)[is_used]

    @property
    def num_pages(self) -> int:
        return self.num_seqs * -(-(EDGES[-1] + 200) // PAGE_SIZE) + self.context // PAGE_SIZE


@functools.cache
def attend_with(kernel: Any, scoring: Scoring):
    return jax.jit(functools.partial(kernel.attend, scoring=scoring))


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(Batch(5, 1024), marks=pytest.mark.grid),
        Batch(5, 1024, group=3, has_sinks=True, scoring=Scoring(0.25, 300, 2.0)),
    ],
    ids=["plain", "sinks, window, soft cap"],
)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_sequences_of_any_lengths_get_what_the_reference_gives(batch, data):
    size = batch.num_seqs
    starts = np.array(data.draw(st.lists(LENGTHS, min_size=size, max_size=size)), np.int32)
    num_tokens = np.array(data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)), np.int32)
    expected, attended = batch.run(starts, num_tokens)
    np.testing.assert_allclose(attended, expected, atol=SAME_ATTENTION_ATOL, rtol=0)


@pytest.mark.grid
def test_one_long_sequence_among_short_ones_gets_what_the_reference_gives():
    starts = np.array([*np.random.RandomState(0).choice(EDGES, 16), LONG - 1, *EDGES[-16:]], np.int32)
    expected, attended = Batch(33, LONG).run(starts, np.ones(33, np.int32))
    np.testing.assert_allclose(attended, expected, atol=SAME_ATTENTION_ATOL, rtol=0)


def test_a_program_takes_several_items_where_these_are_more_than_programs(monkeypatch):
    for name, value in {"ENOUGH_PROGRAMS": 4, "PROGRAMS_AT_ONCE": 4, "USUAL_TOKENS": 128}.items():
        monkeypatch.setattr(gpu, name, value)
    batch = Batch(4, 1024, group=1, scoring=Scoring(0.3))  # traced with these constants alone
    expected, attended = batch.run(np.array([700, 3, 512, 0], np.int32), np.array([1, 1, 1, 0], np.int32))
    np.testing.assert_allclose(attended, expected, atol=SAME_ATTENTION_ATOL, rtol=0)
