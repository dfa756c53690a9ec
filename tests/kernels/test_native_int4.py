"""Products in C++ with weights in 4 bits, against the weight widened by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.native.library import native_code
from service.kernels.products.linear import Products, linear
from service.kernels.products.native import native_float32, native_rounded, serves_int4
from service.kernels.products.quantized import GroupedWeight

pytestmark = pytest.mark.skipif(not native_code().has_products, reason="no native products")
ROUNDS = [False, True] if native_code().rounds_tokens else [False]
DTYPES = [jnp.float32, jnp.bfloat16]


def numbers(num_tokens: int, num_in: int, num_out: int, group: int, dtype=jnp.bfloat16, *, has_zeros: bool = True):
    random = np.random.default_rng(num_tokens * num_in * num_out)
    shape = (num_out, num_in // group)
    scale = jnp.asarray(random.uniform(0.001, 0.1, shape), dtype)
    zero = jnp.asarray(random.uniform(-8, 7, shape), dtype) if has_zeros else None
    values = jnp.asarray(random.integers(-8, 8, (num_out, num_in)), jnp.int4)
    return jnp.asarray(random.standard_normal((num_tokens, num_in), np.float32)), GroupedWeight(values, scale, zero)


def product(x: jax.Array, weight: GroupedWeight, *, rounds: bool, spans: np.ndarray | None = None) -> np.ndarray:
    products = Products(native=native_code(), rounds_tokens=rounds)
    spans = None if spans is None else jnp.asarray(spans)
    return np.asarray(jax.jit(lambda x, weight: linear(x, weight, products, spans=spans))(x, weight))


def of_wide(x: jax.Array, weight: GroupedWeight, *, rounds: bool) -> np.ndarray:
    wide = weight.widened(jnp.float32)
    return np.asarray(native_rounded(x, wide.astype(jnp.bfloat16)) if rounds else native_float32(x, wide))


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(
    ("num_in", "num_out", "group"), [(32, 1, 32), (576, 33, 32), (128, 700, 128), (1056, 17, 96), (8192, 9, 8192)]
)
@pytest.mark.parametrize("num_tokens", [1, 3, 8, 9, 33, 70])
def test_products_are_those_of_the_weight_in_a_wide_type(num_tokens, num_in, num_out, group, rounds):
    for dtype in DTYPES:
        for has_zeros in (True, False):
            x, weight = numbers(num_tokens, num_in, num_out, group, dtype, has_zeros=has_zeros)
            np.testing.assert_array_equal(product(x, weight, rounds=rounds), of_wide(x, weight, rounds=rounds))


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("spans", [[[0, 9]], [[0, 0], [4, 9]], [[0, 2], [4, 6], [6, 7]], [[8, 20]]], ids=str)
def test_tokens_inside_spans_have_the_product_that_they_have_without_and_others_zeros(spans: list, rounds: bool):
    x, weight = numbers(9, 224, 300, 32)
    part = product(x, weight, rounds=rounds, spans=np.array(spans, np.int32))
    inside = np.array([any(first <= token < end for first, end in spans) for token in range(9)])
    np.testing.assert_array_equal(part[inside], of_wide(x, weight, rounds=rounds)[inside])
    assert not part[~inside].any()


def test_several_axes_of_a_weight_are_those_of_the_result_and_other_groups_are_xlas():
    x, weight = numbers(5, 64, 30, 32)
    shaped = GroupedWeight(*(part.reshape(5, 6, -1) for part in weight))
    np.testing.assert_array_equal(product(x, shaped, rounds=False).reshape(5, 30), of_wide(x, weight, rounds=False))
    x, narrow = numbers(5, 96, 30, 16)
    assert serves_int4(native_code(), weight.scale, 64)
    assert not serves_int4(native_code(), narrow.scale, 96)
    assert not serves_int4(native_code(), weight.scale.astype(jnp.float16), 64)
    np.testing.assert_allclose(product(x, narrow, rounds=False), of_wide(x, narrow, rounds=False), atol=1e-3)
