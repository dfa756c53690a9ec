"""The products in C++ against those of numpy, in both kinds of instructions."""

import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts.build_native import has_native_code
from service.device.native.library import LIBRARY, NativeCode, native_code
from service.kernels.products.native import (
    most_native_tokens,
    native_bfloat16,
    native_float32,
    native_int8,
)

pytestmark = [
    pytest.mark.skipif(not has_native_code(), reason="there is no native code for this machine"),
    pytest.mark.skipif(not LIBRARY.exists() and shutil.which("g++") is None, reason="no C++ compiler"),
]

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the limits of instructions are those of x86-64")

float32, bfloat16, int8 = jax.jit(native_float32), jax.jit(native_bfloat16), jax.jit(native_int8)


@pytest.fixture(autouse=True)
def library() -> NativeCode:
    found = native_code()
    assert found.has_products, f"{LIBRARY} was not compiled, or this processor has no instructions for it"
    return found


def numbers(num_tokens: int, num_in: int, num_out: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(num_tokens * num_in * num_out)
    x = random.standard_normal((num_tokens, num_in), np.float32)
    scale = random.uniform(0.001, 0.01, num_out).astype(np.float32)
    return x, random.integers(-128, 128, (num_out, num_in), np.int8), scale


def quantized(x: np.ndarray, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the product with tokens in 8 bits, in the order of operations of `linear`."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    token_scale = np.where(largest == 0, np.float32(1), largest / np.float32(127))
    sums = np.rint(x / token_scale).astype(np.int32) @ values.T.astype(np.int32)
    return sums.astype(np.float32) * (token_scale * scale)


TOKENS = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 48, 50, 65, 256]
SHAPES = [(64, 8), (1, 1), (3, 5), (576, 33), (100, 4), (66, 9), (1030, 17), (4096, 12)]


@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
@pytest.mark.parametrize("num_tokens", TOKENS)
def test_int8_is_exact_in_every_shape(num_tokens: int, num_in: int, num_out: int):
    x, values, scale = numbers(num_tokens, num_in, num_out)
    np.testing.assert_array_equal(int8(x, values, scale), quantized(x, values, scale))


@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
@pytest.mark.parametrize("num_tokens", TOKENS)
def test_float32_is_within_rounding_in_every_shape(num_tokens: int, num_in: int, num_out: int):
    x, values, _ = numbers(num_tokens, num_in, num_out)
    weight = values.astype(np.float32) / 128
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    np.testing.assert_allclose(float32(x, weight), expected, atol=2e-6 * num_in, rtol=0)


@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
@pytest.mark.parametrize("num_tokens", [*TOKENS, 300])
def test_a_weight_in_bfloat16_gives_the_numbers_of_float32(num_tokens: int, num_in: int, num_out: int):
    x, values, scale = numbers(num_tokens, num_in, num_out)
    weight = jnp.asarray(values * scale[:, None], jnp.bfloat16)
    np.testing.assert_array_equal(bfloat16(x, weight), float32(x, weight.astype(jnp.float32)))


SPANS = [
    [[0, 9]],
    [[0, 3]],
    [[0, 0], [4, 9]],
    [[0, 2], [4, 6], [6, 7]],
    [[0, 1], [1, 2], [2, 2], [7, 9]],
    [[0, 0], [5, 5]],
    [[0, 4], [8, 20]],  # to the end, however far a span reaches
]


@pytest.mark.parametrize("spans", SPANS, ids=str)
@pytest.mark.parametrize("num_out", [1, 33, 700])
def test_tokens_inside_spans_have_the_product_that_they_have_without_and_others_zeros(spans: list, num_out: int):
    x, values, scale = numbers(9, 203, num_out)
    x[7] = np.nan if not any(first <= 7 < end for first, end in spans) else x[7]
    weight = values.astype(np.float32) / 128
    inside = np.array([any(first <= token < end for first, end in spans) for token in range(9)])
    spans = np.array(spans, np.int32)
    for product, operands in (
        (float32, (weight,)),
        (bfloat16, (jnp.asarray(weight, jnp.bfloat16),)),
        (int8, (values, scale)),
    ):
        whole, part = np.asarray(product(x, *operands)), np.asarray(product(x, *operands, spans))
        np.testing.assert_array_equal(part[inside], whole[inside])
        assert not part[~inside].any()


@needs_x86
def test_the_other_instructions_give_the_same():
    """The tests above in a process that may use AVX2 only; where that is all there is, the same once more."""
    variables = {**os.environ, "XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "JAX_PLATFORMS": "cpu"}
    code = """
import json, sys, jax, numpy as np
from service.device.native.library import native_code
from service.kernels.products.native import native_bfloat16, native_float32, native_int8
found = native_code().value
random = np.random.default_rng(0)
x = random.standard_normal((11, 203), np.float32)
values = random.integers(-128, 128, (21, 203), np.int8)
scale = random.uniform(0.001, 0.01, 21).astype(np.float32)
weight = values.astype(np.float32)
made = jax.jit(native_int8)(x, values, scale), jax.jit(native_float32)(x, weight)
made += (jax.jit(native_bfloat16)(x, jax.numpy.asarray(weight, "bfloat16")),)
json.dump([found, *(np.asarray(each).tolist() for each in made)], sys.stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    found, in_int8, in_float32, in_bfloat16 = json.loads(done.stdout)
    random = np.random.default_rng(0)
    x = random.standard_normal((11, 203), np.float32)
    values = random.integers(-128, 128, (21, 203), np.int8)
    scale = random.uniform(0.001, 0.01, 21).astype(np.float32)
    assert found == "avx2"
    np.testing.assert_array_equal(np.float32(in_int8), quantized(x, values, scale))
    np.testing.assert_allclose(in_float32, x @ values.T.astype(np.float32), rtol=0, atol=0.05)
    np.testing.assert_array_equal(in_bfloat16, in_float32)  # 8 bits of a bfloat16 hold these values


def test_extreme_values_do_not_overflow():
    x = np.full((9, 4096), -1, np.float32)
    values, scale = np.full((9, 4096), -128, np.int8), np.ones(9, np.float32)
    np.testing.assert_array_equal(int8(x, values, scale), quantized(x, values, scale))


@pytest.mark.parametrize("num_tokens", [4, 20])
def test_tokens_that_are_zero_or_not_finite_leave_the_others_alone(num_tokens: int):
    x, values, scale = numbers(num_tokens, 96, 24)
    x[1] = 0
    x[2, 5], x[3, 5] = np.nan, np.inf
    made = np.asarray(int8(x, values, scale))
    others = [i for i in range(num_tokens) if i not in (2, 3)]
    np.testing.assert_array_equal(made[others], quantized(x[others], values, scale))
    assert not made[1].any()
    assert not np.isfinite(made[2:4]).any()


@pytest.mark.parametrize("product", ["float32", "bfloat16", "int8"])
def test_a_token_has_the_same_result_in_every_batch(product: str):
    x, values, scale = numbers(203, 1030, 77)
    weight = jnp.asarray(values, product)
    multiply = {
        "float32": lambda x: float32(x, weight),
        "bfloat16": lambda x: bfloat16(x, weight),
        "int8": lambda x: int8(x, values, scale),
    }[product]
    whole = np.asarray(multiply(x))
    for first, after in [(0, 1), (202, 203), (5, 8), (16, 32), (40, 173)]:
        np.testing.assert_array_equal(multiply(x[first:after]), whole[first:after])


def test_rows_without_values_sum_to_zero():
    assert not np.asarray(float32(np.ones((2, 0), np.float32), np.ones((3, 0), np.float32))).any()
    made = int8(np.ones((2, 0), np.float32), np.ones((3, 0), np.int8), np.ones(3, np.float32))
    assert (made.shape, np.asarray(made).any()) == ((2, 3), False)


def test_products_of_several_threads_at_once_are_right():
    x, values, scale = numbers(8, 576, 3072)
    expected = quantized(x, values, scale)

    @jax.jit
    def some(x, values, scale):
        return [native_int8(x, values, scale) for _ in range(8)]

    def run(_: int) -> bool:
        return all(np.array_equal(made, expected) for made in some(x, values, scale))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(40)))


DTYPES = [np.dtype(dtype) for dtype in (np.float32, jnp.bfloat16, np.int8, np.float16)]


@pytest.mark.parametrize("native", [NativeCode.NONE, NativeCode.BASE])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_without_native_instructions_are_xlas(native: NativeCode, dtype: np.dtype):
    assert most_native_tokens(native, dtype) == most_native_tokens(native, dtype, num_padded=100) == 0


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_linear_uses_them_for_tokens_inside_spans_whether_few_or_many(dtype: str):
    """By one program: few, whose padding is left out and zero, some more, and nearly all rows."""
    from service.kernels.products.linear import Products, linear
    from service.kernels.products.quantized import QuantizedWeight

    limit = min(most_native_tokens(native_code(), np.dtype(dtype)), 512)
    num_tokens = 2 * limit + 8
    x, values, scale = numbers(num_tokens, 64, 40)
    weight = jnp.asarray(values.astype(np.float32))
    if dtype == "int8":
        weight = QuantizedWeight(jnp.asarray(values), jnp.asarray(scale))
    product = jax.jit(lambda x, spans: linear(x, weight, Products(native=native_code()), spans=spans))
    for first, second in ((2, 0), (1, limit - 1), (2, limit - 1), (limit, limit), (limit, limit + 8)):
        spans = np.array([[0, first], [limit, limit + second]], np.int32)
        inside = [*range(first), *range(limit, limit + second)]
        made = np.asarray(product(x, spans))
        expected = quantized(x, values, scale) if dtype == "int8" else x @ values.T.astype(np.float32)
        np.testing.assert_allclose(made[inside], expected[inside], rtol=1e-5, atol=1e-3)
        assert len(inside) > limit or not np.delete(made, inside, axis=0).any()


@needs_x86
@pytest.mark.parametrize(
    ("max_isa", "found"), [("SSE4_2", "base"), ("AVX", "base"), ("AVX2", "avx2"), ("AVX512", "avx2")]
)
def test_xlas_limit_of_instructions_holds_for_the_products(max_isa: str, found: str):
    code = "from service.device.native.library import native_code; print(native_code())"
    variables = {**os.environ, "XLA_FLAGS": f"--xla_cpu_max_isa={max_isa}"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found


@pytest.mark.skipif(not native_code().rounds_tokens, reason="this processor multiplies no bfloat16")
@pytest.mark.parametrize(("max_isa", "found"), [("AVX512_VNNI", "avx512"), ("AVX512_BF16", "avx512_bf16")])
def test_xlas_limit_holds_for_products_of_bfloat16(max_isa: str, found: str):
    test_xlas_limit_of_instructions_holds_for_the_products(max_isa, found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_linear_uses_them_with_wide_weights(dtype: str):
    from service.kernels.products.linear import Products, linear

    x, values, _ = numbers(6, 24, 30)
    weight = jnp.asarray(values.reshape(5, 6, 24), dtype)
    lowered = jax.jit(lambda x: linear(x, weight, Products(native=native_code()))).lower(jnp.asarray(x))
    assert f"levserve_linear_{dtype}" in lowered.as_text()
    made = np.asarray(lowered.compile()(jnp.asarray(x)))
    np.testing.assert_allclose(made.reshape(6, 30), x @ values.T.astype(np.float32), rtol=0, atol=0.02)


def test_linear_uses_them_in_int8():
    """A sum over several axes too; the HLO names the custom call."""
    from service.kernels.products.linear import Products, linear
    from service.kernels.products.quantized import QuantizedWeight

    x, values, scale = numbers(2, 24, 30)
    weight = QuantizedWeight(jnp.asarray(values.reshape(5, 6, 2, 3, 4)), jnp.asarray(scale.reshape(5, 6)))
    lowered = jax.jit(lambda x: linear(x, weight, Products(native=native_code()), num_in_axes=3)).lower(
        jnp.asarray(x.reshape(1, 2, 2, 3, 4))
    )
    assert "levserve_linear_int8" in lowered.as_text()
    made = lowered.compile()(jnp.asarray(x.reshape(1, 2, 2, 3, 4)))
    np.testing.assert_array_equal(np.asarray(made).reshape(2, 30), quantized(x, values, scale))
