"""A decoder whose products read the weights in parts says what one that reads them whole says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.kernels.linear import CPU_PARTS, WHOLE, product, product_parts
from service.kernels.paging import CacheLayout, Paging
from service.models.decoder import Decoder
from service.models.registry import read_config
from tests.models.whole_step import empty_caches, whole_step
from tests.parity.cases import CASES
from tests.tolerances import SAME_MODEL_ATOL

LAYOUT = CacheLayout(num_pages=4, page_size=4, slot_sizes=(1,), context_sizes=(16,))
TOKEN_IDS = [3, 1, 4, 1, 5, 9]


def logits_of(model: Decoder, weights: dict[str, jax.Array], chunk: int) -> np.ndarray:
    """Feed some tokens, so many at a time, and return the logits after each."""
    caches, hidden = empty_caches(model, LAYOUT), []
    for start in range(0, len(TOKEN_IDS), chunk):
        part = TOKEN_IDS[start : start + chunk]
        paging = Paging(*(jnp.array(v) for v in ([start], [len(part)], [[0, 1, 2, 3]], [0])))
        states, caches = whole_step(model, weights, caches, jnp.array([part]), paging)
        hidden.append(states[0])
    return np.asarray(model.logits(weights, jnp.concatenate(hidden)))


@pytest.mark.parametrize("chunk", [1, 3, 6])
@pytest.mark.parametrize("name", ["llama_biases", "qwen3"])
def test_parts_change_nothing_that_can_be_told(name: str, chunk: int):
    case = next(case for case in CASES if case.name == name)
    config = read_config("test", case.hub_config)
    random = np.random.RandomState(1)
    specs = Decoder(config).weight_specs()
    weights = {spec.name: jnp.asarray(random.randn(*spec.shape) * 0.2, jnp.float32) for spec in specs}
    expected = logits_of(Decoder(config), weights, chunk=6)
    got = logits_of(Decoder(config, parts=((1, 8), (3, 2))), weights, chunk)
    np.testing.assert_allclose(got, expected, atol=SAME_MODEL_ATOL, rtol=0)


@pytest.mark.parametrize("num_out", [24, 20, 7], ids=["divides", "divides by less", "divides by nothing"])
@pytest.mark.parametrize("num_tokens", [1, 2, 8, 9, 64, 65])
def test_a_product_is_one_whatever_its_shape(num_out: int, num_tokens: int):
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal(shape, np.float32) for shape in ((num_tokens, 16), (num_out, 16)))
    made = product(jnp.asarray(x), jnp.asarray(weight), CPU_PARTS)
    np.testing.assert_allclose(made, x @ weight.T, atol=1e-4, rtol=0)


def test_only_a_processor_reads_parts_and_only_float32():
    mesh = DeviceMesh((jax.devices("cpu")[0],))
    assert product_parts(mesh, np.dtype(np.float32)) == CPU_PARTS
    assert product_parts(mesh, np.dtype(jnp.bfloat16)) == WHOLE
    assert product_parts(DeviceMesh((jax.devices("cpu")[0],) * 2), np.dtype(np.float32)) == WHOLE
