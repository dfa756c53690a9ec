"""A step of one token, whose products are summed in parts, says what a step of several says."""

import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.paging import CacheLayout, Paging
from service.models.decoder import Decoder
from service.models.registry import read_config
from tests.models.whole_step import empty_caches, whole_step
from tests.parity.cases import CASES
from tests.tolerances import SAME_MODEL_ATOL

LAYOUT = CacheLayout(num_pages=4, page_size=4, slot_sizes=(1,), context_sizes=(16,))


def hidden_of(model, weights, token_ids, chunk):
    """Feed some tokens, so many at a time, and return the hidden state of each."""
    caches, parts = empty_caches(model, LAYOUT), []
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        paging = Paging(*(jnp.array(v) for v in ([start], [len(part)], [[0, 1, 2, 3]], [0])))
        hidden, caches = whole_step(model, weights, caches, jnp.array([part]), paging)
        parts.append(np.asarray(hidden[0]))
    return np.concatenate(parts)


@pytest.mark.parametrize("parts", [8, 5], ids=["eight", "a number that does not divide"])
@pytest.mark.parametrize("name", ["llama_biases", "qwen3"])
def test_the_order_of_a_sum_is_all_that_differs(name, parts):
    case = next(case for case in CASES if case.name == name)
    config = read_config("test", case.hub_config)
    random = np.random.RandomState(1)
    specs = Decoder(config).weight_specs()
    weights = {spec.name: jnp.asarray(random.randn(*spec.shape) * 0.2, jnp.float32) for spec in specs}
    token_ids = [3, 1, 4, 1, 5, 9]
    expected = hidden_of(Decoder(config), weights, token_ids, chunk=6)
    got = hidden_of(Decoder(config, lone_token_parts=parts), weights, token_ids, chunk=1)
    np.testing.assert_allclose(got, expected, atol=SAME_MODEL_ATOL, rtol=0)
