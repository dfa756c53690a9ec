"""Every option against a plain numpy reference, and what it must not cost."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.batch import pack_options
from service.engine.request import Request, Sampling
from service.engine.runner import unpack_logprobs
from service.engine.steps.logprobs import pack_logprobs
from service.engine.steps.sampling import (
    BROKEN,
    Sampled,
    SamplingState,
    adjust_logits,
    choose_likeliest,
    choose_randomly,
    choose_tokens,
    count_tokens,
    sample_by_branches,
    sample_with_everything,
)
from service.engine.token_mask import ALL_ALLOWED, pack_token_mask
from tests.engine.steps.sampling_reference import adjusted, distribution, log_softmax
from tests.tolerances import SAME_LOGPROB_ATOL

VOCAB = 40
MAX_TOKENS = 16
MAX_ROWS = 8


class Rows(NamedTuple):
    """Everything besides the logits that the programs of a sampling are given."""

    state: SamplingState
    token_mask: jax.Array


def sample_tokens(logits, rows):
    """Run all programs of a sampling, as a runner does for a batch in which every option is used."""
    token_ids = choose_tokens(adjust_logits(logits, *rows), rows.state)
    return Sampled(token_ids, pack_logprobs(logits, jnp.maximum(token_ids, 0)))


compiled_sample = jax.jit(sample_tokens)
compiled_adjust = jax.jit(adjust_logits)
compiled_count = jax.jit(count_tokens)
compiled_branches = jax.jit(sample_by_branches)
compiled_everything = jax.jit(sample_with_everything)


def words_of(allowed):
    """One bit a token, the lowest first."""
    bits = np.zeros(-(-len(allowed) // 32) * 32, bool)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint32)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_a_request_allows_by_the_same_bits_and_the_last_word_is_its_last_tokens(token_ids):
    allowed = np.isin(np.arange(max(token_ids) + 1), list(token_ids))
    assert pack_token_mask(token_ids).tolist() == words_of(allowed).tolist()


def rows_of(requests, outputs=None, *, vocab=VOCAB, allowed=None, positions=None, is_row=None):
    """Return what the sampler is told of some sequences, as steps leave it on the device."""
    num_rows = len(requests)
    outputs = outputs or [[]] * num_rows
    counts = jnp.full((num_rows, vocab), 12345, jnp.int32)  # what another sequence left
    for slot, (request, output_ids) in enumerate(zip(requests, outputs, strict=True)):
        padded = np.zeros(MAX_TOKENS, np.int32)
        token_ids = [*request.prompt_ids, *output_ids]
        padded[: len(token_ids)] = token_ids
        counts = compiled_count(counts, slot, padded, len(request.prompt_ids), len(token_ids))
    words = np.full((num_rows, -(-vocab // 32)), ALL_ALLOWED, np.uint32)
    for row, allowed_tokens in enumerate(allowed or []):
        words[row] = words_of(allowed_tokens)
    lengths = [len(r.prompt_ids) + len(o) for r, o in zip(requests, outputs, strict=True)]
    state = SamplingState(
        options=jax.tree.map(jnp.asarray, pack_options(requests, num_rows)),
        token_counts=counts,
        positions=jnp.asarray(lengths if positions is None else positions, jnp.int32),
        is_sampled=jnp.asarray([True] * num_rows if is_row is None else is_row),
    )
    return Rows(state, jnp.asarray(words))


def sampled(logits, rows):
    """Sample in one shape for all tests, with padding below: compiling takes longer than running."""
    logits = jnp.asarray(logits, jnp.float32)
    num_rows = len(logits)

    def padded(leaf):
        return jnp.pad(leaf, [(0, MAX_ROWS - num_rows), *[(0, 0)] * (leaf.ndim - 1)])

    got = compiled_sample(padded(logits), jax.tree.map(padded, rows))
    return jax.tree.map(lambda leaf: np.asarray(leaf[:num_rows]), got)


def draws(logits, sampling, num_draws=4096, **facts):
    """Draw many tokens from one row's scores, each with another seed, in one call."""
    request = Request("a", (1, 2), 8, sampling, stop_ids=frozenset({3, 5}))
    rows = rows_of([request], vocab=len(logits), **facts)
    many, masks = jax.tree.map(lambda leaf: jnp.repeat(leaf, num_draws, axis=0), rows)
    seeds = np.stack([np.zeros(num_draws, np.int32), np.arange(num_draws, dtype=np.int32)], axis=1)
    integers = many.options.integers.at[:, 4:6].set(seeds)
    many = many._replace(options=many.options._replace(integers=integers))
    return np.asarray(compiled_sample(jnp.tile(jnp.asarray(logits), (num_draws, 1)), Rows(many, masks)).token_ids)


@pytest.fixture(scope="module")
def logits():
    return np.random.RandomState(0).randn(VOCAB).astype(np.float32) * 1.5


small_floats = st.floats(-8, 8, width=16)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 2**63 - 1),
    top_k=st.sampled_from([0, 1, 3, 10, VOCAB, 10**6]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3, 10.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.7, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 0.3, 2.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=16), max_size=5),
    group_from=st.none() | st.integers(0, VOCAB),
    min_tokens=st.integers(0, 4),
    num_logprobs=st.sampled_from([None, 0, 5, 20]),
)
sequences = st.tuples(
    samplings,
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),  # prompt
    st.lists(st.integers(0, VOCAB - 1), max_size=6),  # output
    st.sets(st.integers(0, VOCAB - 1), max_size=3),  # stop tokens
    st.none() | st.sets(st.integers(0, VOCAB - 1), min_size=8),  # allowed tokens
)


@settings(max_examples=100, deadline=None)
@given(batch=st.lists(sequences, min_size=4, max_size=4), scores_seed=st.integers(0, 1000))
def test_every_row_gets_a_token_that_its_own_options_allow_whatever_its_neighbours_ask(batch, scores_seed):
    logits = (np.random.RandomState(scores_seed).randn(4, VOCAB) * 2).astype(np.float32)
    requests = [
        Request(str(i), tuple(prompt), 8, sampling, frozenset(stop))
        for i, (sampling, prompt, _, stop, _) in enumerate(batch)
    ]
    outputs = [output for _, _, output, _, _ in batch]
    allowed = [np.isin(np.arange(VOCAB), list(range(VOCAB) if ids is None else ids)) for *_, ids in batch]
    got = sampled(logits, rows_of(requests, outputs, allowed=allowed))
    for row, request in enumerate(requests):
        scores = adjusted(logits[row], request, outputs[row], allowed[row])
        token_id = int(got.token_ids[row])
        if np.max(scores) == -np.inf:  # the stop tokens that are held back were all that was allowed
            assert token_id == BROKEN
            continue
        # Two tokens of nearly one score, or at the very border of a share, may fall either way in float32.
        nearby = [distribution(scores + shift, _wider(request.sampling)) for shift in _jitters(row)]
        assert sum(nearby)[token_id] > 0
        if request.sampling.num_logprobs is not None:
            _check_logprobs(got.logprobs[row], logits[row], token_id, request.sampling.num_logprobs)


def _wider(sampling):
    fields = {name: getattr(sampling, name) for name in ("temperature", "top_k")}
    top_p = sampling.top_p if sampling.top_p == 1 else min(sampling.top_p + 1e-5, 1 - 1e-9)
    return Sampling(**fields, top_p=top_p, min_p=max(sampling.min_p - 1e-5, 0.0))


def _jitters(seed):
    rng = np.random.RandomState(seed)
    return [np.zeros(VOCAB), *(rng.uniform(-1e-5, 1e-5, VOCAB) for _ in range(8))]


def _check_logprobs(packed, logits, token_id, num_top):
    got = unpack_logprobs(packed, num_top)
    expected = log_softmax(logits)
    assert got.logprob == pytest.approx(expected[token_id], abs=SAME_LOGPROB_ATOL)
    assert got.rank == np.sum(logits >= logits[token_id])
    assert [top_id for top_id, _ in got.top] == np.argsort(-expected, kind="stable")[:num_top].tolist()
    np.testing.assert_allclose([p for _, p in got.top], np.sort(expected)[::-1][:num_top], atol=SAME_LOGPROB_ATOL)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.5),
        Sampling(temperature=2.0),
        Sampling(top_p=0.01),
        Sampling(top_p=0.7),
        Sampling(top_p=0.95),
        Sampling(top_k=1),
        Sampling(top_k=7),
        Sampling(min_p=0.2),
        Sampling(top_k=9, top_p=0.8, min_p=0.02, temperature=1.3),
        Sampling(logit_bias={4: 3.0, 9: -100.0}),
        Sampling(min_tokens=1),
        Sampling(repetition_penalty=3.0),
    ],
    ids=repr,
)
def test_draws_follow_the_references_distribution(logits, sampling):
    drawn = draws(logits, sampling)
    request = Request("a", (1, 2), 8, sampling, stop_ids=frozenset({3, 5}))
    expected = distribution(adjusted(logits, request, [], None), sampling)
    frequencies = np.bincount(drawn, minlength=VOCAB) / len(drawn)
    assert set(drawn.tolist()) <= set(np.flatnonzero(expected).tolist())
    # Five standard deviations of a binomial share.
    assert np.all(np.abs(frequencies - expected) < 5 * np.sqrt(expected / len(drawn)) + 1e-3)


def test_a_large_vocabulary_is_drawn_from_to_its_end():
    drawn = draws(np.zeros(1000, np.float32), Sampling())
    assert (drawn.min() < 20, drawn.max() > 980, len(set(drawn.tolist())) > 900) == (True, True, True)
    only_last = np.full(1000, -50, np.float32)
    only_last[999] = 0
    assert set(draws(only_last, Sampling(top_p=0.9)).tolist()) == {999}


def test_temperature_zero_takes_the_likeliest_even_beside_one_that_draws(logits):
    requests = [Request(str(i), (1,), 8, Sampling(temperature=2.0 * (i % 2), seed=i)) for i in range(8)]
    drawn = sampled(np.tile(logits, (8, 1)), rows_of(requests)).token_ids
    assert set(drawn[::2].tolist()) == {int(np.argmax(logits))}
    assert len(set(drawn[1::2].tolist())) > 1


def test_the_same_seed_and_position_draw_the_same_token_alone_or_in_a_crowd(logits):
    crowd = np.random.RandomState(1).randn(8, VOCAB).astype(np.float32)
    crowd[5] = logits
    for seed in (0, 7, 2**40 + 3, 2**63 - 1):
        requests = [Request(str(i), (1,), 8, Sampling(seed=i, top_p=0.5, top_k=i)) for i in range(8)]
        requests[5] = Request("5", (1,), 8, Sampling(seed=seed, top_p=0.9))
        alone = compiled_sample(jnp.asarray(logits[None]), rows_of(requests[5:6], positions=[9]))
        together = compiled_sample(jnp.asarray(crowd), rows_of(requests, positions=[9] * 8))
        assert int(together.token_ids[5]) == int(alone.token_ids[0])


def test_another_seed_or_position_draws_anew():
    flat = np.zeros((1, 1000), np.float32)

    def drawn(seed, position):
        request = Request("a", (1,), 8, Sampling(seed=seed))
        return int(compiled_sample(flat, rows_of([request], vocab=1000, positions=[position])).token_ids[0])

    assert len({drawn(seed, 0) for seed in range(20)}) >= 17
    assert len({drawn(3, position) for position in range(20)}) >= 17
    assert len({drawn(seed << 32, 0) for seed in range(20)}) >= 17


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(top_p=0.5), Sampling(logit_bias={2: 1.0})])
def test_scores_that_are_no_numbers_break_their_row_alone(logits, broken, sampling):
    scores = np.tile(logits, (3, 1))
    scores[1, slice(None) if broken == -np.inf else 7] = broken
    requests = [Request(str(i), (1,), 8, sampling) for i in range(3)]
    token_ids = sampled(scores, rows_of(requests)).token_ids
    assert token_ids[1] == BROKEN
    healthy = sampled(np.tile(logits, (3, 1)), rows_of(requests)).token_ids
    assert (token_ids[[0, 2]] == healthy[[0, 2]]).all()


def test_a_token_that_is_not_allowed_may_have_no_number_but_the_row_still_fails(logits):
    scores = logits.copy()
    scores[7] = np.nan
    allowed = np.arange(VOCAB) != 7
    rows = rows_of([Request("a", (1,), 8, Sampling())], allowed=[allowed])
    assert int(sampled(scores[None], rows).token_ids[0]) == BROKEN


def primitives(jaxpr, *, enters_branches):
    """Yield the names of all primitives that run, or of those that run whatever the options."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        if equation.primitive.name == "cond" and not enters_branches:
            continue
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner, enters_branches=enters_branches)


VARIANTS = {
    "greedy": (choose_likeliest, {"temperature": [0.0]}),
    "random": (
        functools.partial(choose_randomly, has_limits=False),
        {"temperature": [0.0, 0.7, 1.5], "min_p": [0.0, 0.2]},
    ),
    "limited": (
        functools.partial(choose_randomly, has_limits=True),
        {"temperature": [0.0, 0.7, 1.5], "min_p": [0.0, 0.2], "top_k": [0, 1, 5], "top_p": [0.3, 0.9, 1.0]},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_chooses_the_same_tokens_without_a_branch(variant):
    choose, values = VARIANTS[variant]
    random = np.random.RandomState(3)
    options = [{name: random.choice(among).item() for name, among in values.items()} for _ in range(40)]
    requests = [Request(str(i), (1, 2), 8, Sampling(seed=i, **chosen)) for i, chosen in enumerate(options)]
    logits = jnp.asarray(random.randn(len(requests), VOCAB) * 3, jnp.float32).at[5, 3].set(jnp.nan)
    state = rows_of(requests).state
    names = set(primitives(jax.make_jaxpr(choose)(logits, state).jaxpr, enters_branches=True))
    assert "cond" not in names
    assert jax.jit(choose)(logits, state).tolist() == jax.jit(choose_tokens)(logits, state).tolist()


def test_penalties_without_a_branch_leave_other_sequences_their_logits_bit_by_bit():
    costly = Sampling(repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=-0.5)
    requests = [Request(str(i), (1, 2), 8, costly if i == 1 else Sampling()) for i in range(3)]
    logits = jnp.asarray(np.random.RandomState(0).randn(3, VOCAB), jnp.float32)
    rows = rows_of(requests, outputs=[[4, 4], [4, 5], [6]])
    adjust = functools.partial(adjust_logits, can_branch=False)
    assert "cond" not in set(primitives(jax.make_jaxpr(adjust)(logits, *rows).jaxpr, enters_branches=True))
    adjusted_rows = np.asarray(jax.jit(adjust)(logits, *rows))
    assert (adjusted_rows[[0, 2]] == np.asarray(logits)[[0, 2]]).all()
    assert (adjusted_rows == np.asarray(compiled_adjust(logits, *rows))).all()


def test_nothing_is_sorted_and_greedy_rows_run_no_pass_but_two():
    rows = rows_of([Request("a", (1,), 8)])
    logits = jnp.zeros((1, VOCAB))
    assert "sort" not in set(primitives(jax.make_jaxpr(sample_tokens)(logits, rows).jaxpr, enters_branches=True))
    jaxpr = jax.make_jaxpr(choose_tokens)(logits, rows.state).jaxpr
    always = set(primitives(jaxpr, enters_branches=False))
    assert {"exp", "while", "random_bits", "threefry2x32"} & always == set()
    (switch,) = [e for e in jaxpr.eqns if e.primitive.name == "cond"]
    greedy = set(primitives(switch.params["branches"][0].jaxpr, enters_branches=True))
    assert {"exp", "while", "scatter", "scatter-add", "cumsum", "argmax"} & greedy == set()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000))
def test_options_of_one_row_leave_the_logits_of_the_others_as_they_are(seed):
    logits = (np.random.RandomState(seed).randn(3, VOCAB) * 4).astype(np.float32)
    costly = Sampling(repetition_penalty=2.0, frequency_penalty=1.0, logit_bias={3: 5.0}, min_tokens=3)
    requests = [Request(str(i), (1, 2), 8, costly if i == 1 else Sampling(), frozenset({4})) for i in range(3)]
    changed = np.asarray(compiled_adjust(logits, *rows_of(requests)))
    assert (changed[[0, 2]] == logits[[0, 2]]).all()
    assert (changed[1] != logits[1]).any()


@pytest.mark.parametrize("can_branch", [True, False])
def test_a_group_that_is_likelier_as_a_whole_excludes_all_other_tokens(can_branch):
    logits = np.full((3, VOCAB), -20, np.float32)
    logits[:, 5] = 2  # the likeliest token outside the group
    logits[0, 30:] = 0  # ten members of e^0: together e^2.3
    logits[1, 30:] = -1  # together e^1.3
    logits[2, 30:] = 0
    grouped = [Request(str(i), (1, 2), 8, Sampling(group_from=30 if i < 2 else None)) for i in range(3)]
    adjust = jax.jit(functools.partial(adjust_logits, can_branch=can_branch))
    got = np.asarray(adjust(logits, *rows_of(grouped)))
    assert np.isneginf(got[0, :30]).all()
    assert (got[0, 30:] == logits[0, 30:]).all()
    assert (got[1:] == logits[1:]).all()


@settings(max_examples=60, deadline=None)
@given(batch=st.lists(sequences, min_size=4, max_size=4), scores_seed=st.integers(0, 1000))
def test_both_forms_of_the_general_sampler_agree(batch, scores_seed):
    logits = (np.random.RandomState(scores_seed).randn(4, VOCAB) * 2).astype(np.float32)
    requests = [
        Request(str(i), tuple(prompt), 8, sampling, frozenset(stop))
        for i, (sampling, prompt, _, stop, _) in enumerate(batch)
    ]
    allowed = [np.isin(np.arange(VOCAB), list(range(VOCAB) if ids is None else ids)) for *_, ids in batch]
    rows = rows_of(requests, [output for _, _, output, _, _ in batch], allowed=allowed)
    branching, everything = compiled_branches(logits, *rows), compiled_everything(logits, *rows)
    assert branching.token_ids.tolist() == everything.token_ids.tolist()
    if any(request.sampling.num_logprobs is not None for request in requests):
        assert branching.logprobs.tolist() == everything.logprobs.tolist()


def test_a_sampler_that_may_branch_does_nothing_that_no_sequence_asks_for():
    rows = rows_of([Request("a", (1,), 8, Sampling(temperature=0.0))])
    jaxpr = jax.make_jaxpr(sample_by_branches)(jnp.zeros((1, VOCAB)), *rows).jaxpr
    always = set(primitives(jaxpr, enters_branches=False))
    assert {"exp", "while", "scatter", "top_k"} & always == set()


def test_padding_asks_for_nothing():
    """A row that ended leaves its options in its slot: they must cost its neighbours nothing, and draw nothing."""
    costly = Sampling(temperature=1.0, top_p=0.5, repetition_penalty=2.0, num_logprobs=5)
    requests = [Request("a", (1,), 8, Sampling(temperature=0.0)), Request("b", (1,), 8, costly)]
    logits = np.random.RandomState(0).randn(2, VOCAB)
    got = sampled(logits, rows_of(requests, is_row=[True, False]))
    adjusted_logits = np.asarray(compiled_adjust(logits.astype(np.float32), *rows_of(requests, is_row=[True, False])))
    assert int(got.token_ids[1]) == int(np.argmax(logits[1]))
    assert (adjusted_logits == logits.astype(np.float32)).all()
