"""States of Mamba-2: what rows, slots and batches give is what one token after the other gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.paging import STATE_BEFORE, ZERO_STATE, Paging, StateSlots
from service.kernels.states.ssd import Tokens, run_ssd

GROUPS, HEADS, HEAD_DIM, STATE_DIM, ROW = 2, 3, 24, 32, 64
NUM_SLOTS = 5
# Relative to the largest result: float32 sums of a row and of states.
SAME_RECURRENCE = 1e-5
run = jax.jit(run_ssd, static_argnames="is_in_turn")


def paging(starts, counts, reads, writes):
    slots = StateSlots(jnp.array(reads, jnp.int32), jnp.array(writes, jnp.int32))
    table = jnp.zeros((len(starts), 1), jnp.int32)
    return Paging(jnp.array(starts, jnp.int32), jnp.array(counts, jnp.int32), table, states=slots)


def draw(seed, length, least_decay=-1.0):
    """Draw tokens whose B are alike, so that sums grow."""
    random = np.random.RandomState(seed)
    inputs = random.randn(length, GROUPS, HEADS, HEAD_DIM)
    writes, reads = 1 + 0.3 * random.randn(length, GROUPS, STATE_DIM), random.randn(length, GROUPS, STATE_DIM)
    decays = random.uniform(least_decay, 0, (length, GROUPS, HEADS))
    return Tokens(*(np.asarray(a, np.float32) for a in (inputs, writes, reads, decays)))


def expected(tokens):
    """Return what one token after the other reads, in float64, and the last state."""
    state, results = np.zeros((GROUPS, HEADS, HEAD_DIM, STATE_DIM)), []
    for x, b, c, g in zip(*(np.asarray(a, np.float64) for a in tokens), strict=True):
        state = state * np.exp(g)[..., None, None] + np.einsum("ghp,gs->ghps", x, b)
        results.append(np.einsum("ghps,gs->ghp", state, c))
    return np.array(results), state


def empty():
    return jnp.full((NUM_SLOTS, GROUPS, HEADS, HEAD_DIM, STATE_DIM), jnp.nan, jnp.float32)


def in_rows(tokens, cuts, *, is_in_turn=True):
    """Run tokens in steps that end at `cuts`, with rows of 64 that begin at multiples of it, over one slot."""
    results, begin, states, slot = [], 0, empty(), 2
    for end in cuts:
        starts = [begin, *range((begin // ROW + 1) * ROW, end, ROW)]
        spans = list(zip(starts, [*starts[1:], end], strict=True))
        counts = [b - a for a, b in spans]
        padded = (
            [np.pad(a[s:e], ((0, ROW - e + s), *((0, 0),) * (a.ndim - 1)), constant_values=9) for s, e in spans]
            for a in tokens
        )
        reads = [slot if begin else ZERO_STATE, *[STATE_BEFORE] * (len(starts) - 1)]
        where = paging(starts, counts, reads, [*[NUM_SLOTS] * (len(starts) - 1), slot])
        read, states = run(Tokens(*map(jnp.stack, padded)), states, where, is_in_turn=is_in_turn)
        results += [np.asarray(read)[row, :count] for row, count in enumerate(counts)]
        begin = end
    return np.concatenate(results), states[slot]


@pytest.mark.parametrize("is_in_turn", [True, False])
@pytest.mark.parametrize("least_decay", [-4.0, 0.0, -60.0])
def test_rows_give_what_a_recurrence_in_float64_gives(least_decay, is_in_turn):
    tokens = draw(1, 300, least_decay)
    wanted, last = expected(tokens)
    found, state = in_rows(tokens, [300], is_in_turn=is_in_turn)
    np.testing.assert_allclose(found, wanted, atol=SAME_RECURRENCE * np.abs(wanted).max(), rtol=0)
    np.testing.assert_allclose(state, last, atol=SAME_RECURRENCE * np.abs(last).max(), rtol=0)


def test_cuts_at_the_ends_of_rows_change_no_bit_and_others_next_to_nothing():
    tokens = draw(2, 300)
    whole, state = in_rows(tokens, [300])
    for cuts in ([64, 300], [128, 192, 300], [64, 128, 192, 256, 300]):
        found, other = in_rows(tokens, cuts)
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(other, state)
    for cut in (1, 17, 63, 65, 130):
        found, _ = in_rows(tokens, [cut, 300])
        np.testing.assert_allclose(found, whole, atol=SAME_RECURRENCE * np.abs(whole).max(), rtol=0)


@pytest.mark.parametrize("is_in_turn", [True, False])
def test_a_token_at_a_time_in_any_company_gives_what_rows_give(is_in_turn):
    tokens, others = draw(3, 40), draw(4, 40)
    wanted, _ = expected(tokens)
    alone, crowd, of_one, of_all = [], [], empty(), empty()
    for position in range(40):
        own = Tokens(*(jnp.asarray(a[position][None, None]) for a in tokens))
        where = paging([position], [1], [3 if position else ZERO_STATE], [3])
        read, of_one = run(own, of_one, where, is_in_turn=is_in_turn)
        alone.append(np.asarray(read)[0, 0])
        rows = (
            (b[position], np.full_like(a[position], np.nan), a[position]) for a, b in zip(tokens, others, strict=True)
        )
        reads = [0 if position else ZERO_STATE, 4, 2 if position else ZERO_STATE]
        where = paging([position] * 3, [1, 0, 1], reads, [0, NUM_SLOTS, 2])
        read, of_all = run(Tokens(*(jnp.stack(row)[:, None] for row in rows)), of_all, where, is_in_turn=is_in_turn)
        crowd.append(np.asarray(read)[2, 0])
    np.testing.assert_allclose(alone, wanted, atol=SAME_RECURRENCE * np.abs(wanted).max(), rtol=0)
    if is_in_turn:
        np.testing.assert_array_equal(crowd, alone)
    np.testing.assert_allclose(crowd, alone, atol=SAME_RECURRENCE * np.abs(wanted).max(), rtol=0)
    assert np.isnan(of_all[jnp.array([1, 3, 4])]).all()
