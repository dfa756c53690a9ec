"""Products of tokens rounded to bfloat16 with weights in it, against numpy's in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import BFloat16

from service.device.native.library import native_code
from service.kernels.products.grouped import grouped_linear
from service.kernels.products.linear import Products, linear
from service.kernels.products.native import native_rounded

pytestmark = pytest.mark.skipif(not native_code().rounds_tokens, reason="this processor multiplies no bfloat16")

rounded = jax.jit(native_rounded)
PRODUCTS = Products(native=native_code(), rounds_tokens=True)
TOKENS = [1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 33, 70, 300]
SHAPES = [(64, 8), (1, 1), (3, 5), (31, 7), (33, 4), (576, 33), (1030, 17), (4096, 12)]


def numbers(num_tokens: int, num_in: int, num_out: int) -> tuple[np.ndarray, BFloat16[jax.Array, "out in"]]:
    random = np.random.default_rng(num_tokens * num_in * num_out)
    weight = jnp.asarray(random.standard_normal((num_out, num_in)), jnp.bfloat16)
    return random.standard_normal((num_tokens, num_in), np.float32), weight


def in_float64(x: np.ndarray, weight: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the product, and the sum of the magnitudes of what it sums."""
    wide = np.asarray(weight, np.float64).T
    return x.astype(np.float64) @ wide, np.abs(x.astype(np.float64)) @ np.abs(wide)


@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
@pytest.mark.parametrize("num_tokens", TOKENS)
def test_errors_are_those_of_rounding_tokens_and_of_sums_in_float32(num_tokens: int, num_in: int, num_out: int):
    x, weight = numbers(num_tokens, num_in, num_out)
    made = np.asarray(rounded(x, weight), np.float64)
    product, magnitude = in_float64(np.asarray(jnp.asarray(x, jnp.bfloat16)), weight)
    num_sums = 2 * -(-num_in // 32) + 4  # of a lane, and of the lanes
    assert (np.abs(made - product) <= 1.01 * num_sums * 2**-24 * magnitude).all()
    product, magnitude = in_float64(x, weight)
    assert (np.abs(made - product) <= (2**-8 + 1.01 * num_sums * 2**-24) * magnitude).all()


def test_half_is_rounded_to_even():
    ulp = 2.0**-7  # of a bfloat16 between one and two
    x = np.array([[1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp / 2 + 2**-20, -1 - ulp / 2]], np.float32)
    made = rounded(x.T, jnp.ones((1, 1), jnp.bfloat16))
    np.testing.assert_array_equal(np.asarray(made).T, [[1, 1 + 2 * ulp, 1 + ulp, -1]])


def test_a_token_has_the_same_result_in_every_batch():
    x, weight = numbers(203, 1030, 77)
    whole = np.asarray(rounded(x, weight))
    for first, after in [(0, 1), (202, 203), (5, 8), (16, 24), (16, 32), (40, 173)]:
        np.testing.assert_array_equal(rounded(x[first:after], weight), whole[first:after])


@pytest.mark.parametrize("num_tokens", [1, 4, 20])
def test_numbers_that_are_not_finite_leave_other_tokens_alone_and_tiny_ones_count_as_zero(num_tokens: int):
    x, weight = numbers(num_tokens + 3, 96, 24)
    finite = np.asarray(rounded(x, weight))
    x[0, 5], x[1, 95], x[2] = np.nan, np.inf, 1e-39
    made = np.asarray(rounded(x, weight))
    assert np.isnan(made[0]).all()
    assert np.isinf(made[1]).all()
    assert not made[2].any()
    np.testing.assert_array_equal(made[3:], finite[3:])


@pytest.mark.parametrize("spans", [[[0, 9]], [[0, 0], [4, 9]], [[0, 2], [4, 6], [6, 7]], [[5, 5]], [[8, 20]]], ids=str)
def test_tokens_inside_spans_have_the_product_that_they_have_without_and_others_zeros(spans: list):
    x, weight = numbers(9, 203, 700)
    whole, part = np.asarray(rounded(x, weight)), np.asarray(rounded(x, weight, np.array(spans, np.int32)))
    inside = np.array([any(first <= token < end for first, end in spans) for token in range(9)])
    np.testing.assert_array_equal(part[inside], whole[inside])
    assert not part[~inside].any()


def test_a_row_of_a_group_has_the_product_of_its_group():
    x, _ = numbers(44, 70, 1)
    weights = jnp.stack([numbers(1 + group, 70, 19)[1] for group in range(6)])
    sizes = np.array([3, 0, 1, 0, 0, 40], np.int32)
    made = jax.jit(lambda *operands: grouped_linear(*operands, PRODUCTS))(x, weights, sizes)
    for rows, group in [(slice(0, 3), 0), (slice(3, 4), 2), (slice(4, 44), 5)]:
        np.testing.assert_array_equal(made[rows], rounded(x[rows], weights[group]))


def test_linear_rounds_where_weights_are_in_bfloat16_alone():
    x, weight = numbers(6, 24, 30)
    shaped = weight.reshape(5, 6, 24)
    made = linear(jnp.asarray(x), shaped, PRODUCTS)
    np.testing.assert_array_equal(np.asarray(made).reshape(6, 30), rounded(x, weight))
    wide = linear(jnp.asarray(x), shaped.astype(jnp.float32), PRODUCTS)
    product, magnitude = in_float64(x, weight)
    assert (np.abs(np.asarray(wide).reshape(6, 30) - product) <= 24 * 2**-24 * magnitude).all()
