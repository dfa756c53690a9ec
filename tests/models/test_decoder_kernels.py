"""A whole model says the same with every kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from tests.kernels.emulated import RAGGED, TRITON
from tests.models.whole_step import WholeStep
from tests.parity.cases import CASES
from tests.tolerances import SAME_MODEL_ATOL

PAGE_SIZE = 4
LAYOUT = CacheLayout(num_pages=16, page_size=PAGE_SIZE)
PAGES = np.random.RandomState(3).permutation(16).reshape(2, 8).astype(np.int32)
PROMPTS = ([1, 7, 3, 9, 2, 5, 4, 8, 6, 11, 10], [12, 4, 9])


def continue_greedily(model: Decoder, weights: dict[str, jax.Array], num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Prefill both prompts in one step, then decode; return the tokens and the scores that they were drawn from."""

    step = WholeStep(model)
    lengths = np.array([len(prompt) for prompt in PROMPTS], np.int32)
    padded = np.zeros((2, max(lengths)), np.int32)
    for row, prompt in enumerate(PROMPTS):
        padded[row, : len(prompt)] = prompt
    start, counts, token_ids, caches = np.zeros(2, np.int32), lengths, jnp.asarray(padded), step.empty_caches(LAYOUT)
    tokens, scores = [], []
    for _ in range(num_tokens):
        paging = Paging(*(jnp.asarray(part) for part in (start, counts, PAGES)))
        logits, caches = step(weights, caches, token_ids, paging)
        scores.append(np.asarray(logits)[np.arange(2), counts - 1])
        tokens.append(scores[-1].argmax(axis=-1))
        start, counts, token_ids = start + counts, np.ones(2, np.int32), jnp.asarray(tokens[-1][:, None], jnp.int32)
    return np.array(tokens), np.array(scores)


@pytest.mark.parametrize(
    "kernel", [pytest.param(TRITON, id="triton"), pytest.param(RAGGED, id="ragged", marks=pytest.mark.slow)]
)
def test_a_model_continues_alike_with_the_kernel_of_an_accelerator(kernel):
    case = next(c for c in CASES if c.name == "mistral_window")
    config = read_config("test", case.hub_config)
    rng = np.random.RandomState(1)
    specs = Decoder(config).weight_specs()
    weights = {s.name: jnp.asarray(rng.randn(*s.shape) * 0.3, jnp.float32) for s in specs}
    expected_tokens, expected_scores = continue_greedily(Decoder(config, kernel=PagedReference()), weights, 8)
    tokens, scores = continue_greedily(Decoder(config, kernel=kernel), weights, 8)
    assert len(np.unique(expected_tokens)) > 3  # a model that repeats itself would prove little
    np.testing.assert_array_equal(tokens, expected_tokens)
    np.testing.assert_allclose(scores, expected_scores, atol=SAME_MODEL_ATOL, rtol=0)
