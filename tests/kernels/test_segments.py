"""Attention within segments equals attention over each segment alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.segments import segment_attention
from tests.tolerances import SAME_ATTENTION_ATOL

SCALE = 0.5


def heads(num_tokens, seed):
    return np.random.RandomState(seed).randn(num_tokens, 2, 4).astype(np.float32)


def alone(query, key, value):
    scores = np.einsum("qhd,khd->hqk", query, key).astype(np.float64) * SCALE
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), value)


def together(query, key, value, segments):
    attended = segment_attention(*map(jnp.asarray, (query, key, value, segments)), scale=SCALE)
    return np.asarray(attended)


@pytest.mark.parametrize("lengths", [(5, 1, 7), (700, 324), (1024,)])
def test_each_segment_is_as_if_it_were_alone(lengths):
    parts = [heads(sum(lengths), seed) for seed in range(3)]
    segments = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    found = together(*parts, segments)
    for number in range(len(lengths)):
        expected = alone(*(part[segments == number] for part in parts))
        np.testing.assert_allclose(found[segments == number], expected, atol=SAME_ATTENTION_ATOL)


def test_a_nan_in_a_value_does_not_leave_its_segment():
    query, key, value = (heads(6, seed) for seed in range(3))
    segments = np.array([0, 0, 0, 1, 1, 1], np.int32)
    sound = together(query, key, value, segments)
    value[1, 0, 2] = np.nan
    found = together(query, key, value, segments)
    assert np.isnan(found[:3, 0]).all()
    np.testing.assert_array_equal(found[3:], sound[3:])
