"""Attention within segments equals attention over each segment alone, in every window that holds them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.segments import segment_attention
from service.kernels.windows import Sight, windows
from tests.tolerances import SAME_ATTENTION_ATOL

SCALE = 0.5


def heads(num_tokens, seed, num_heads=2):
    return np.random.RandomState(seed).randn(num_tokens, num_heads, 4).astype(np.float32)


def alone(query, key, value, sight=None):
    sight = sight or Sight()
    key, value = (np.repeat(part, query.shape[1] // part.shape[1], axis=1) for part in (key, value))
    scores = np.einsum("qhd,khd->hqk", query, key).astype(np.float64) * SCALE
    distance = np.subtract.outer(np.arange(len(query)), np.arange(len(query)))
    is_seen = (distance >= 0) | (not sight.is_causal)
    is_seen &= np.abs(distance) <= (len(query) if sight.reach is None else sight.reach)
    shares = np.where(is_seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    return np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), value)


def together(query, key, value, segments, window, sight=None):
    arrays = map(jnp.asarray, (query, key, value, segments))
    number = jnp.int32(windows(len(segments)).index(window))
    return np.asarray(segment_attention(*arrays, number, scale=SCALE, sight=sight or Sight()))


def test_a_row_has_windows_that_divide_it():
    assert windows(512) == (32, 128, 512)
    assert windows(16) == (16,)
    assert windows(500) == (500,)


@pytest.mark.parametrize(
    ("lengths", "window"),
    [
        ((5, 1, 7), 13),
        ((20, 12, 32, 31, 1), 32),
        pytest.param((20, 12, 32, 31, 1), 96, marks=pytest.mark.grid),
        pytest.param((700, 324), 1024, marks=pytest.mark.grid),
        ((512, 300, 212), 512),
        ((700, 300), 1000),
    ],
)
@pytest.mark.parametrize("sight", [Sight(), Sight(is_causal=True, reach=6)])
def test_each_segment_is_as_if_it_were_alone(lengths, window, sight):
    total = sum(lengths)
    parts = heads(total, 0, num_heads=4), heads(total, 1), heads(total, 2)
    segments = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    found = together(*parts, segments, window, sight)
    for number in range(len(lengths)):
        expected = alone(*(part[segments == number] for part in parts), sight)
        np.testing.assert_allclose(found[segments == number], expected, atol=SAME_ATTENTION_ATOL)


def test_the_scores_of_a_long_row_never_exist_all_at_once():
    num_tokens, num_heads = 4000, 2
    part, segments = jnp.zeros((num_tokens, num_heads, 4)), jnp.zeros(num_tokens, jnp.int32)
    step = jax.jit(functools.partial(segment_attention, scale=SCALE))
    memory = step.lower(part, part, part, segments, jnp.int32(0)).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < num_heads * num_tokens**2 * 4 / 4


def test_a_nan_in_a_value_does_not_leave_its_segment():
    query, key, value = (heads(6, seed) for seed in range(3))
    segments = np.array([0, 0, 0, 1, 1, 1], np.int32)
    sound = together(query, key, value, segments, 6)
    value[1, 0, 2] = np.nan
    found = together(query, key, value, segments, 6)
    assert np.isnan(found[:3, 0]).all()
    np.testing.assert_array_equal(found[3:], sound[3:])
