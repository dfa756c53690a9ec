"""States of recurrent layers: what rows, slots and batches give is what one token after the other gives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.paging import STATE_BEFORE, ZERO_STATE, Paging, StateSlots
from service.kernels.states.convolution import convolve
from service.kernels.states.delta import Tokens, run_delta

HEADS, GROUP, KEY_DIM, VALUE_DIM, ROW = 2, 3, 32, 24, 64
NUM_SLOTS = 5
# Relative to the largest result: float32 sums of a row, of a solved system, and of states.
SAME_RECURRENCE = 1e-5
run = jax.jit(run_delta, static_argnames="is_in_turn")


def paging(starts, counts, reads, writes):
    slots = StateSlots(jnp.array(reads, jnp.int32), jnp.array(writes, jnp.int32))
    table = jnp.zeros((len(starts), 1), jnp.int32)
    return Paging(jnp.array(starts, jnp.int32), jnp.array(counts, jnp.int32), table, states=slots)


def draw(seed, length, *, keys="random", most_share=1.0, least_decay=-1.0):
    """Draw tokens of which keys may be alike, which is what breaks a careless solution."""
    random = np.random.RandomState(seed)
    common = random.randn(1, HEADS, KEY_DIM)
    own = random.randn(length, HEADS, KEY_DIM)
    vectors = common + 0.35 * own if keys == "alike" else own
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    queries = random.randn(length, HEADS, KEY_DIM) / KEY_DIM
    values = random.randn(length, HEADS, GROUP, VALUE_DIM)
    decays = random.uniform(least_decay, 0, (length, HEADS, GROUP))
    shares = random.uniform(0.2 * most_share, most_share, (length, HEADS, GROUP))
    return Tokens(*(np.asarray(a, np.float32) for a in (queries, vectors, values, decays, shares)))


def expected(tokens):
    """Return what one token after the other reads, in float64, and the last state."""
    queries, keys, values, decays, shares = (np.asarray(a, np.float64) for a in tokens)
    state, results = np.zeros((HEADS, GROUP, KEY_DIM, VALUE_DIM)), []
    for q, k, v, g, b in zip(queries, keys, values, decays, shares, strict=True):
        state = state * np.exp(g)[..., None, None]
        correction = b[..., None] * (v - np.einsum("hgkv,hk->hgv", state, k))
        state = state + np.einsum("hk,hgv->hgkv", k, correction)
        results.append(np.einsum("hgkv,hk->hgv", state, q))
    return np.array(results), state


def in_rows(tokens, states, first_slot, cuts, *, is_in_turn=True):
    """Run tokens in steps that end at `cuts`, with rows of 64 that begin at multiples of it."""
    results, begin = [], 0
    for end in cuts:
        starts = [begin, *range((begin // ROW + 1) * ROW, end, ROW)]
        ends = [*starts[1:], end]
        counts = [b - a for a, b in zip(starts, ends, strict=True)]
        rows = [
            np.stack(
                [
                    np.pad(a[s:e], ((0, ROW - e + s), *((0, 0),) * (a.ndim - 1)))
                    for s, e in zip(starts, ends, strict=True)
                ]
            )
            for a in tokens
        ]
        reads = [first_slot if begin else ZERO_STATE, *[STATE_BEFORE] * (len(starts) - 1)]
        writes = [*[NUM_SLOTS] * (len(starts) - 1), first_slot]
        read, states = run(
            Tokens(*map(jnp.asarray, rows)), states, paging(starts, counts, reads, writes), is_in_turn=is_in_turn
        )
        results += [np.asarray(read)[row, :count] for row, count in enumerate(counts)]
        begin = end
    return np.concatenate(results), states


def empty():
    return jnp.full((NUM_SLOTS, HEADS, GROUP, KEY_DIM, VALUE_DIM), jnp.nan, jnp.float32)


CASES = [("random", 1.0, -4.0), ("alike", 1.0, 0.0), ("alike", 2.0, 0.0), ("alike", 2.0, -0.05), ("random", 1.0, -60.0)]


@pytest.mark.parametrize("is_in_turn", [True, False])
@pytest.mark.parametrize(("keys", "most_share", "least_decay"), CASES)
def test_rows_give_what_a_recurrence_in_float64_gives(keys, most_share, least_decay, is_in_turn):
    tokens = draw(1, 300, keys=keys, most_share=most_share, least_decay=least_decay)
    wanted, last = expected(tokens)
    found, states = in_rows(tokens, empty(), 2, [300], is_in_turn=is_in_turn)
    np.testing.assert_allclose(found, wanted, atol=SAME_RECURRENCE * np.abs(wanted).max(), rtol=0)
    np.testing.assert_allclose(states[2], last, atol=SAME_RECURRENCE * np.abs(last).max(), rtol=0)


@pytest.mark.parametrize("is_in_turn", [True, False])
@pytest.mark.parametrize("counts", [(200, 130), (64, 3), (65, 200), (128, 1)])
def test_rows_that_are_longer_are_cut(counts, is_in_turn):
    """One begins with zeros, and one goes on where it has ended."""
    tokens = draw(7, sum(counts), least_decay=-8.0)
    wanted, last = expected(tokens)
    first = counts[0]
    rows = [
        jnp.stack(
            [
                jnp.asarray(np.pad(part, ((0, 200 - len(part)), *((0, 0),) * (a.ndim - 1))))
                for part in (a[:first], a[first:])
            ]
        )
        for a in tokens
    ]
    where = paging([0, first], counts, [ZERO_STATE, STATE_BEFORE], [0, 4])
    read, states = run(Tokens(*rows), empty(), where, is_in_turn=is_in_turn)
    found = np.concatenate([np.asarray(read)[row, :count] for row, count in enumerate(counts)])
    np.testing.assert_allclose(found, wanted, atol=SAME_RECURRENCE * np.abs(wanted).max(), rtol=0)
    np.testing.assert_allclose(states[4], last, atol=SAME_RECURRENCE * np.abs(last).max(), rtol=0)
    _, kept = expected(Tokens(*(a[:first] for a in tokens)))
    np.testing.assert_allclose(states[0], kept, atol=SAME_RECURRENCE * np.abs(kept).max(), rtol=0)
    assert np.isnan(states[jnp.array([1, 2, 3])]).all()


@pytest.mark.parametrize("is_in_turn", [True, False])
@pytest.mark.parametrize("width", [ROW, 2 * ROW])
def test_a_state_has_read_the_tokens_that_are_known_and_none_behind_them(width, is_in_turn):
    """One row has tokens that may be wrong, and goes on where a slot ends; one is of a prompt."""
    tokens = draw(8, 21, least_decay=-2.0)
    wanted, _ = expected(tokens)
    parts = [Tokens(*(a[begin:end] for a in tokens)) for begin, end in ((0, 7), (7, 21))]
    _, states = in_rows(parts[0], empty(), 3, [7])
    rows = [
        jnp.stack([jnp.asarray(np.pad(part, ((0, width - len(part)), *((0, 0),) * (part.ndim - 1)))) for part in of])
        for of in zip(parts[1], parts[0], strict=True)
    ]
    where = paging([7, 0], (14, 7), [3, ZERO_STATE], [1, 0])
    where = where._replace(states=where.states._replace(known=jnp.array([6, 7], jnp.int32)))
    read, states = run(Tokens(*rows), states, where, is_in_turn=is_in_turn)
    np.testing.assert_allclose(read[0, :14], wanted[7:], atol=SAME_RECURRENCE * np.abs(wanted).max(), rtol=0)
    for slot, length in ((1, 13), (0, 7)):
        _, kept = expected(Tokens(*(a[:length] for a in tokens)))
        np.testing.assert_allclose(states[slot], kept, atol=SAME_RECURRENCE * np.abs(kept).max(), rtol=0)


def test_cuts_at_the_ends_of_rows_change_no_bit_and_others_next_to_nothing():
    tokens = draw(2, 300, keys="alike")
    whole, states = in_rows(tokens, empty(), 1, [300])
    for cuts in ([64, 300], [128, 192, 300], [64, 128, 192, 256, 300]):
        found, others = in_rows(tokens, empty(), 1, cuts)
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(others[1], states[1])
    for cut in (1, 17, 63, 65, 130):
        found, others = in_rows(tokens, empty(), 1, [cut, 300])
        np.testing.assert_allclose(found, whole, atol=SAME_RECURRENCE * np.abs(whole).max(), rtol=0)


@pytest.mark.parametrize("is_in_turn", [True, False])
def test_a_token_at_a_time_in_any_company_gives_what_rows_give(is_in_turn):
    tokens = draw(3, 40)
    wanted, _ = expected(tokens)
    alone, states = [], empty()
    for position in range(40):
        own = Tokens(*(jnp.asarray(a[position][None, None]) for a in tokens))
        read, states = run(
            own, states, paging([position], [1], [3 if position else ZERO_STATE], [3]), is_in_turn=is_in_turn
        )
        alone.append(np.asarray(read)[0, 0])
    np.testing.assert_allclose(alone, wanted, atol=SAME_RECURRENCE * np.abs(wanted).max(), rtol=0)
    others, states, crowd = draw(4, 40), empty(), []
    for position in range(40):
        own = Tokens(
            *(
                jnp.stack([b[position], jnp.full_like(a[position], jnp.nan), a[position]])[:, None]
                for a, b in zip(tokens, others, strict=True)
            )
        )
        reads, writes = [0 if position else ZERO_STATE, 4, 2 if position else ZERO_STATE], [0, NUM_SLOTS, 2]
        read, states = run(own, states, paging([position] * 3, [1, 0, 1], reads, writes), is_in_turn=is_in_turn)
        crowd.append(np.asarray(read)[2, 0])
    if is_in_turn:
        np.testing.assert_array_equal(crowd, alone)
    np.testing.assert_allclose(crowd, alone, atol=SAME_RECURRENCE * np.abs(wanted).max(), rtol=0)
    assert np.isnan(states[jnp.array([1, 3, 4])]).all()


def test_a_row_leaves_its_state_in_a_slot_and_the_next_one_goes_on():
    tokens = draw(5, 128)
    _, states = in_rows(tokens, empty(), 0, [64, 128])
    rows = Tokens(*(jnp.asarray(a.reshape(2, ROW, *a.shape[1:])) for a in tokens))
    _, both = run(rows, empty(), paging([0, 64], [64, 64], [ZERO_STATE, STATE_BEFORE], [3, 4]), is_in_turn=True)
    _, kept = in_rows(tokens, empty(), 0, [64])
    np.testing.assert_array_equal(both[3], kept[0])
    np.testing.assert_array_equal(both[4], states[0])


@pytest.mark.parametrize("width", [2, 3, 4, 7])
def test_a_convolution_is_the_same_in_every_cut(width):
    random, channels, length = np.random.RandomState(width), 5, 40
    inputs, taps = random.randn(length, channels).astype(np.float32), random.randn(channels, width).astype(np.float32)
    known = np.concatenate([np.zeros((width - 1, channels), np.float32), inputs])
    wanted = sum(known[tap : tap + length] * taps[:, tap] for tap in range(width))
    call = jax.jit(partial(convolve, taps=jnp.asarray(taps)))
    for chunk in (1, 2, 3, 8, 40):
        states, found = jnp.full((width - 1, NUM_SLOTS, channels), jnp.nan, jnp.float32), []
        for begin in range(0, length, chunk):
            part = inputs[begin : begin + chunk]
            rows = np.zeros((1, 48, channels), np.float32)
            rows[0, : len(part)] = part
            where = paging([begin], [len(part)], [1 if begin else ZERO_STATE], [1])
            result, states = call(jnp.asarray(rows), states=states, paging=where)
            found.append(np.asarray(result)[0, : len(part)])
        np.testing.assert_allclose(np.concatenate(found), wanted, atol=1e-6, rtol=0)
    rows = jnp.asarray(inputs.reshape(5, 8, channels))
    where = paging(range(0, 40, 8), [8] * 5, [ZERO_STATE, *[STATE_BEFORE] * 4], [*[NUM_SLOTS] * 4, 0])
    result, states = call(rows, states=jnp.full((width - 1, NUM_SLOTS, channels), jnp.nan, jnp.float32), paging=where)
    np.testing.assert_allclose(result.reshape(length, channels), wanted, atol=1e-6, rtol=0)
    np.testing.assert_array_equal(states[:, 0], inputs[length - width + 1 :])
