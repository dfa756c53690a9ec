"""Products in C++ with weights in 4 bits, against the weight widened by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.device.native.library import NativeCode, native_code
from service.kernels.limits import serves_int4
from service.kernels.products.linear import Products, choose_products, linear
from service.kernels.products.native import native_float32
from service.kernels.products.quantized import GroupedWeight
from service.models.quantization import scale_name
from service.models.weight_spec import INT4, WeightSpec
from service.weights.interleaved import interleave, interleaved_names

pytestmark = pytest.mark.skipif(not native_code().has_products, reason="no native products")
needs_quantized = pytest.mark.skipif(
    not native_code().quantizes_parts, reason="tokens are not quantized on this processor"
)
QUANTIZES = [False, pytest.param(True, marks=needs_quantized)]
SHAPES = [(32, 16, 32), (576, 48, 32), (128, 704, 128), (1056, 32, 96), (1600, 16, 160), (8192, 16, 8192)]
PART = 32  # columns of a token with one scale
FORMS = [
    (jnp.float32, True),
    (jnp.bfloat16, True),
    (jnp.bfloat16, False),
]  # of scales, and whether there are zero points


def numbers(num_tokens: int, num_in: int, num_out: int, group: int, dtype=jnp.bfloat16, *, has_zeros: bool = True):
    random = np.random.default_rng(num_tokens * num_in * num_out)
    shape = (num_out, num_in // group)
    scale = jnp.asarray(random.uniform(0.001, 0.1, shape), dtype)
    zero = jnp.asarray(random.uniform(-8, 7, shape), dtype) if has_zeros else None
    values = jnp.asarray(random.integers(-8, 8, (num_out, num_in)), jnp.int4)
    return jnp.asarray(random.standard_normal((num_tokens, num_in), np.float32)), GroupedWeight(values, scale, zero)


def product(x: jax.Array, weight: GroupedWeight, *, quantizes=False, spans: np.ndarray | None = None) -> np.ndarray:
    products = Products(native=native_code(), quantizes_parts=quantizes)
    spans = None if spans is None else jnp.asarray(spans)
    return np.asarray(jax.jit(lambda x, weight: linear(x, weight, products, spans=spans))(x, interleaved(weight)))


def interleaved(weight: GroupedWeight) -> GroupedWeight:
    return GroupedWeight(*(None if each is None else jnp.asarray(interleave(np.asarray(each))) for each in weight))


def of_wide(x: jax.Array, weight: GroupedWeight) -> np.ndarray:
    return np.asarray(native_float32(x, weight.widened(jnp.float32)))


def quantized(x: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers of tokens and their scales, in float64, repeated for each column."""
    parts = np.asarray(x).reshape(len(x), -1, PART)
    most = np.abs(parts).max(-1, keepdims=True)
    integers = np.rint(parts / (most / np.float32(127))).reshape(x.shape)
    return integers.astype(np.float64), np.repeat((most / np.float32(127))[..., 0].astype(np.float64), PART, 1)


@pytest.mark.parametrize(("num_in", "num_out", "group"), SHAPES)
@pytest.mark.parametrize("num_tokens", [1, 3, 8, 33])
def test_products_are_those_of_the_weight_in_a_wide_type(num_tokens: int, num_in: int, num_out: int, group: int):
    for dtype, has_zeros in FORMS:
        x, weight = numbers(num_tokens, num_in, num_out, group, dtype, has_zeros=has_zeros)
        np.testing.assert_array_equal(product(x, weight), of_wide(x, weight))


@needs_quantized
@pytest.mark.parametrize(("num_in", "num_out", "group"), SHAPES)
@pytest.mark.parametrize("num_tokens", [1, 15, 70])
def test_errors_are_those_of_tokens_in_8_bits_and_of_sums_of_parts_in_float32(num_tokens, num_in, num_out, group):
    for dtype, has_zeros in FORMS:
        x, weight = numbers(num_tokens, num_in, num_out, group, dtype, has_zeros=has_zeros)
        made = product(x, weight, quantizes=True).astype(np.float64)
        integers, scales = quantized(x)
        scale, zero = (
            np.repeat(np.asarray(part, np.float64), group, 1) if part is not None else 0
            for part in (weight.scale, weight.zero)
        )
        values = np.asarray(weight.values, np.float64)
        tokens = integers * scales
        # A part is the difference of two sums, of values that are no less than zero and of what is taken away.
        magnitude = np.abs(tokens) @ (scale * (values + 8 + np.abs(zero + 8))).T
        num_roundings = num_in // PART + 8
        bound = num_roundings * 2.0**-24 * magnitude
        assert (np.abs(made - tokens @ (scale * (values - zero)).T) <= bound).all()
        bound += 0.501 * scales @ np.abs(scale * (values - zero)).T
        assert (np.abs(made - np.asarray(x, np.float64) @ (scale * (values - zero)).T) <= bound).all()


@needs_quantized
def test_a_quantized_token_has_the_same_result_in_every_batch():
    x, weight = numbers(203, 1088, 80, 32)
    whole = product(x, weight, quantizes=True)
    for first, after in [(0, 1), (202, 203), (5, 8), (16, 24), (16, 32), (40, 173)]:
        np.testing.assert_array_equal(product(x[first:after], weight, quantizes=True), whole[first:after])


@needs_quantized
@pytest.mark.parametrize("num_tokens", [1, 4, 20])
def test_numbers_that_are_not_finite_leave_other_tokens_alone_and_tiny_ones_count_as_zero(num_tokens: int):
    x, weight = numbers(num_tokens + 4, 96, 48, 32)
    finite = product(x, weight, quantizes=True)
    x = x.at[0, 5].set(np.nan).at[1, 95].set(np.inf).at[2].set(1e-39).at[3, :32].set(0)
    made = product(x, weight, quantizes=True)
    assert not np.isfinite(made[:2]).any()
    assert not made[2].any()
    np.testing.assert_array_equal(made[4:], finite[4:])
    rest = GroupedWeight(*(part[:, part.shape[1] // 3 :] for part in weight))
    np.testing.assert_array_equal(made[3], product(x[3:4, 32:], rest, quantizes=True)[0])


@pytest.mark.parametrize("quantizes", QUANTIZES)
@pytest.mark.parametrize("spans", [[[0, 9]], [[0, 0], [4, 9]], [[0, 2], [4, 6], [6, 7]], [[8, 20]]], ids=str)
def test_tokens_inside_spans_have_the_product_that_they_have_without_and_others_zeros(spans: list, quantizes: bool):
    x, weight = numbers(9, 224, 304, 32)
    part = product(x, weight, quantizes=quantizes, spans=np.array(spans, np.int32))
    inside = np.array([any(first <= token < end for first, end in spans) for token in range(9)])
    np.testing.assert_array_equal(part[inside], product(x, weight, quantizes=quantizes)[inside])
    assert not part[~inside].any()


def test_several_axes_of_a_weight_are_those_of_the_result_and_other_groups_and_rows_are_xlas():
    x, weight = numbers(5, 64, 96, 32)
    shaped = GroupedWeight(*(part.reshape(8, 12, -1) for part in interleaved(weight)))
    made = linear(x, shaped, Products(native=native_code()))
    np.testing.assert_array_equal(made.reshape(5, 96), of_wide(x, weight))
    for x, other in (numbers(5, 96, 32, 16), numbers(5, 96, 24, 32)):
        np.testing.assert_allclose(linear(x, other, Products(native=native_code())), of_wide(x, other), atol=1e-3)


def test_weights_are_served_whose_rows_are_whole_panels_and_whose_groups_are_whole_vectors():
    native, float32 = native_code(), np.dtype(np.float32)
    assert serves_int4(native, float32, (2, 8, 96), num_groups=3)
    assert not serves_int4(native, float32, (3, 8, 96), num_groups=3)
    assert not serves_int4(native, float32, (2, 8, 96), num_groups=3, stack_axes=1)
    assert not serves_int4(native, float32, (2, 8, 96), num_groups=6)
    assert not serves_int4(native, np.dtype(np.float16), (2, 8, 96), num_groups=3)
    assert not serves_int4(NativeCode.BASE, float32, (2, 8, 96), num_groups=3)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_what_is_interleaved_for_a_cpu_is_read_so_by_activations_of_every_dtype(dtype):
    x, weight = numbers(5, 128, 48, 32)
    mesh = DeviceMesh((jax.devices("cpu")[0],))
    specs = {
        "w": WeightSpec("w", ("out", "in"), weight.values.shape, (), dtype=INT4),
        scale_name("w"): WeightSpec(
            scale_name("w"), ("out", "group"), weight.scale.shape, (), dtype=weight.scale.dtype
        ),
    }
    assert interleaved_names(specs) >= set(specs)
    products = choose_products(mesh, np.dtype(dtype))
    made = linear(x.astype(dtype), interleaved(weight), products)
    assert made.dtype == dtype
    expected = of_wide(x.astype(dtype).astype(jnp.float32), weight)
    np.testing.assert_allclose(made.astype(jnp.float32), expected, rtol=2**-8, atol=1e-5)
