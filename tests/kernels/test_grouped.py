"""Grouped products, in plain JAX and in C++, against numpy's product of each group."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.native.library import native_code
from service.kernels.products.grouped import grouped_linear
from service.kernels.products.grouped_gpu import four_bits_on_gpu, grouped_on_gpu
from service.kernels.products.grouped_tpu import grouped_on_tpu
from service.kernels.products.linear import PLAIN, SPLIT, Products
from service.kernels.products.quantized import Fp8Products, GroupedWeight, QuantizedWeight

NATIVE = Products(native=native_code())
SIZES = [[3, 0, 1, 0, 0, 40], [0, 0, 1, 0, 0, 0], [1] * 6]
KINDS = {"float32": 2e-4, "bfloat16": 2e-4, "int8": 0.05, "float8_e4m3fn": 2e-4}

needs_native = pytest.mark.skipif(not NATIVE.native.has_products, reason="no products in C++ for this processor")


def drawn(kind: str, num_in: int = 70) -> tuple[np.ndarray, jax.Array | QuantizedWeight, np.ndarray]:
    """Return rows, a weight of one kind, and the same weight in float64, [group, 2, 19, in]."""
    random = np.random.RandomState(num_in)
    x = random.randn(44, num_in).astype(np.float32)
    values = random.randint(-8, 9, (6, 2, 19, num_in))
    weight = jnp.asarray(values, kind)
    if kind not in ("int8", "float8_e4m3fn"):
        return x, weight, values.astype(np.float64)
    scale = random.uniform(0.5, 1, values.shape[:-1]).astype(np.float32)
    return x, QuantizedWeight(weight, jnp.asarray(scale)), values * scale[..., None].astype(np.float64)


@functools.cache
def product(products: Products):
    return jax.jit(functools.partial(grouped_linear, products=products, fp8=Fp8Products.IN_PARTS))


def expected(x: np.ndarray, weight: np.ndarray, sizes: list[int]) -> np.ndarray:
    of_row = np.repeat(np.arange(len(sizes)), sizes)
    return np.einsum("ri,rgoi->rgo", x.astype(np.float64), weight[of_row])


@pytest.mark.parametrize("products", [PLAIN, pytest.param(NATIVE, marks=needs_native)], ids=["jax", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_multiplied_by_the_weight_of_its_group(products, kind):
    x, weight, wide = drawn(kind)
    for sizes in SIZES:
        rows = x[: sum(sizes)]
        made = product(products)(rows, weight, np.array(sizes, np.int32))
        found = np.abs(np.asarray(made) - expected(rows, wide, sizes))
        assert found.max(initial=0) <= KINDS[kind] * 70, sizes


@needs_native
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("num_in", [64, 70])
def test_a_row_has_the_same_product_whatever_the_others_are(kind, num_in):
    x, weight, _ = drawn(kind, num_in)
    whole = np.asarray(product(NATIVE)(x, weight, np.array([3, 0, 1, 0, 0, 40], np.int32)))
    for row, group in [(0, 0), (2, 0), (3, 2), (4, 5), (43, 5)]:
        alone = product(NATIVE)(x[row : row + 1], weight, np.eye(6, dtype=np.int32)[group])
        np.testing.assert_array_equal(alone[0], whole[row])


@needs_native
def test_the_weights_of_groups_without_rows_are_not_read():
    x, weight, wide = drawn("float32")
    assert isinstance(weight, jax.Array)
    poisoned = weight.at[jnp.array([1, 3, 4])].set(jnp.nan)
    sizes = [3, 0, 1, 0, 0, 40]
    for products in (PLAIN, NATIVE):
        made = product(products)(x, poisoned, np.array(sizes, np.int32))
        np.testing.assert_allclose(made, expected(x, wide, sizes), atol=2e-4)


@pytest.mark.parametrize(
    "kind", ["int8", *(pytest.param(kind, marks=pytest.mark.grid) for kind in ("float32", "bfloat16", "float8_e4m3fn"))]
)
def test_a_gpu_multiplies_each_row_by_the_weight_of_its_group(kind):
    x, weight, _ = drawn(kind)
    values = weight.values if isinstance(weight, QuantizedWeight) else weight
    flat = values.reshape(6, -1, values.shape[-1])
    x = np.asarray(jnp.asarray(x, "bfloat16" if kind == "bfloat16" else x.dtype).astype(jnp.float32))
    for sizes in SIZES:
        rows = jnp.asarray(x[: sum(sizes)], "bfloat16" if kind == "bfloat16" else x.dtype)
        made = grouped_on_gpu(rows, flat, jnp.array(sizes, jnp.int32), interpret=True)
        wide = np.asarray(flat.astype(jnp.float32))[:, None]
        np.testing.assert_allclose(made[:, None], expected(x[: sum(sizes)], wide, sizes), atol=1e-3)


def test_a_tpu_multiplies_each_row_by_the_weight_of_its_group():
    x, weight, wide = drawn("float32")
    assert isinstance(weight, jax.Array)
    flat, wide = weight.reshape(6, -1, x.shape[1]), wide.reshape(6, 1, -1, x.shape[1])
    for sizes in SIZES:
        made = grouped_on_tpu(jnp.asarray(x[: sum(sizes)]), flat, jnp.array(sizes, jnp.int32), interpret=True)
        np.testing.assert_allclose(made[:, None], expected(x[: sum(sizes)], wide, sizes), atol=1e-3)


@needs_native
@pytest.mark.parametrize("sizes", [[45, 0, 0, 0, 0, 0], [-1, 45, 0, 0, 0, 0]])
def test_sizes_that_are_not_those_of_the_rows_are_refused(sizes):
    x, weight, _ = drawn("float32")
    # XLA raises one where it runs the call at once, and the other where the result is awaited.
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="sizes of groups"):
        jax.block_until_ready(product(NATIVE)(x, weight, np.array(sizes, np.int32)))


def in_4_bits(kind: str, num_in: int, group_size: int, *, has_zeros: bool) -> tuple[GroupedWeight, np.ndarray]:
    """Return a weight of six groups, and the same in float64."""
    random = np.random.RandomState(num_in)
    codes = random.randint(0, 16, (6, 2, 19, num_in)).astype(np.uint8)
    values = jnp.asarray(codes.view(kind) if kind == "float4_e2m1fn" else (codes.view(np.int8) - 8).astype("int4"))
    shape = (*codes.shape[:-1], num_in // group_size)
    scale = 2.0 ** random.randint(-3, 2, shape)
    zero = random.randint(-8, 8, shape).astype(np.float32) if has_zeros else None
    wide = np.asarray(values).astype(np.float64).reshape(*shape, group_size) - (0 if zero is None else zero[..., None])
    weight = GroupedWeight(values, jnp.asarray(scale, jnp.float32), None if zero is None else jnp.asarray(zero))
    return weight, (wide * scale[..., None]).reshape(codes.shape)


@pytest.mark.parametrize(
    ("kind", "num_in", "group_size", "has_zeros"),
    [
        ("float4_e2m1fn", 96, 32, False),
        ("float4_e2m1fn", 160, 16, False),
        ("int4", 96, 32, True),
        ("int4", 256, 128, False),
        ("int4", 70, 70, True),
    ],
)
def test_experts_in_4_bits_are_multiplied_as_what_they_stand_for(kind, num_in, group_size, has_zeros):
    weight, wide = in_4_bits(kind, num_in, group_size, has_zeros=has_zeros)
    flat = GroupedWeight(*(part if part is None else part.reshape(6, -1, part.shape[-1]) for part in weight))
    x = np.random.RandomState(0).randn(44, num_in).astype(np.float32)
    for sizes in SIZES:
        rows, numbers = jnp.asarray(x[: sum(sizes)]), jnp.array(sizes, jnp.int32)
        awaited = expected(x[: sum(sizes)], wide, sizes)
        for products in (PLAIN, NATIVE, SPLIT):
            np.testing.assert_allclose(product(products)(rows, weight, numbers), awaited, atol=1e-3)
        made = four_bits_on_gpu(rows, flat, numbers, interpret=True)
        np.testing.assert_allclose(made.reshape(awaited.shape), awaited, atol=1e-3)


@pytest.mark.parametrize("num_rows", [1, 17, 100])
@pytest.mark.parametrize("kind", ["int4", "float4_e2m1fn"])
def test_one_weight_in_4_bits_is_multiplied_by_the_same_kernel(kind, num_rows):
    weight, wide = in_4_bits(kind, 64, 16, has_zeros=False)
    flat = GroupedWeight(*(part if part is None else part[:1].reshape(1, -1, part.shape[-1]) for part in weight))
    x = np.random.RandomState(1).randn(num_rows, 64).astype(np.float32)
    made = four_bits_on_gpu(jnp.asarray(x), flat, None, dtype=jnp.bfloat16, interpret=True)
    assert made.dtype == jnp.bfloat16
    np.testing.assert_allclose(made.astype(jnp.float32), x @ wide[0].reshape(-1, 64).T, rtol=2**-8, atol=1e-3)
