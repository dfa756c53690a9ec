"""NaN in the cache of one sequence stays with that sequence, also after its pages and row are reused."""

import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.blocks import BlockAttention
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from tests.kernels.emulated import RAGGED, TRITON
from tests.models.whole_step import WholeStep
from tests.parity.cases import CASES

LAYOUT = CacheLayout(num_pages=4, page_size=4)
BROKEN_TOKEN = 7
KERNELS = [
    pytest.param(PagedReference(), id="pages"),
    pytest.param(BlockAttention(), id="rows"),
    pytest.param(TRITON, id="triton"),
    # A broken key in the cache of this kernel is in the quick series of tests/kernels.
    pytest.param(RAGGED, id="ragged", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("weight", ["embed", pytest.param("layers.1.qkv", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sequence_that_went_wrong_leaves_nothing_in_its_pages(kernel, weight):
    case = next(c for c in CASES if c.name == "llama_grouped_heads")
    model = Decoder(read_config("test", case.hub_config), kernel=kernel)
    rng = np.random.RandomState(0)
    weights = {s.name: jnp.asarray(rng.randn(*s.shape) * 0.1, jnp.float32) for s in model.weight_specs()}
    broken = dict(weights)
    if weight == "embed":
        broken["embed"] = weights["embed"].at[BROKEN_TOKEN].set(jnp.nan)
    else:  # only the values are wrong: queries and keys are numbers
        axes = next(s.axes for s in model.weight_specs() if s.name == weight)
        values = tuple(-1 if axis == "qkv_group" else slice(None) for axis in axes)
        broken[weight] = weights[weight].at[values].set(jnp.inf)

    step = WholeStep(model)

    def run(weights, caches, token_ids):
        paging = Paging(*(jnp.array(v) for v in ([0], [token_ids.shape[1]], [[2, 0, 3, 1]])))
        logits, caches = step(weights, caches, token_ids, paging)
        return np.asarray(logits)[0], caches

    long, short = jnp.array([[1, 2, BROKEN_TOKEN, 4, 5, 6, 8, 9, 3, 1]]), jnp.array([[3, 1, 4]])
    wrong, dirty = run(broken, step.empty_caches(LAYOUT), long)
    assert np.isnan(wrong[-1]).any()  # the sequence itself is not healed in secret
    expected, _ = run(weights, step.empty_caches(LAYOUT), short)
    got, _ = run(weights, dirty, short)
    np.testing.assert_array_equal(got, expected)
