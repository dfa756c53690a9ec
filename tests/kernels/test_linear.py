"""How products are computed changes no logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.device.native.library import native_code
from service.device.widened_tokens import WidenedTokens
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.kernels.products.linear import PLAIN, SPLIT, Products, choose_products, linear
from service.kernels.products.quantized import FP8, Fp8Products, GroupedWeight, QuantizedWeight, choose_fp8_products
from service.models.decoder import Decoder
from service.models.quantization import MAX_INT8_ROW
from service.models.registry import read_config
from tests.device.devices import NamedDevice
from tests.models.whole_step import WholeStep
from tests.parity.cases import CASES
from tests.tolerances import SAME_MODEL_ATOL

LAYOUT = CacheLayout(num_pages=4, page_size=4)
TOKEN_IDS = [3, 1, 4, 1, 5, 9]


def logits_of(model: Decoder, weights: dict[str, jax.Array], chunk: int) -> np.ndarray:
    """Feed some tokens, so many at a time, and return the logits after each."""
    step = WholeStep(model)
    caches, rows = step.empty_caches(LAYOUT), []
    for start in range(0, len(TOKEN_IDS), chunk):
        part = TOKEN_IDS[start : start + chunk]
        paging = Paging(*(jnp.array(v) for v in ([start], [len(part)], [[0, 1, 2, 3]])))
        logits, caches = step(weights, caches, jnp.array([part]), paging)
        rows.append(np.asarray(logits)[0])
    return np.concatenate(rows)


@pytest.mark.parametrize(
    "products", [Products(((1, 8), (3, 2))), Products(native=native_code())], ids=["split", "native"]
)
@pytest.mark.parametrize("chunk", [1, pytest.param(3, marks=pytest.mark.grid), 6])
@pytest.mark.parametrize("name", ["llama_biases", pytest.param("qwen3", marks=pytest.mark.grid)])
def test_other_products_give_the_same_logits(name: str, chunk: int, products: Products):
    case = next(case for case in CASES if case.name == name)
    config = read_config("test", case.hub_config)
    random = np.random.RandomState(1)
    specs = Decoder(config).weight_specs()
    weights = {spec.name: jnp.asarray(random.randn(*spec.shape) * 0.2, jnp.float32) for spec in specs}
    expected = logits_of(Decoder(config), weights, chunk=6)
    got = logits_of(Decoder(config, products=products), weights, chunk)
    np.testing.assert_allclose(got, expected, atol=SAME_MODEL_ATOL, rtol=0)


@pytest.mark.parametrize("num_out", [24, 20, 7], ids=["divides", "divides by less", "divides by nothing"])
@pytest.mark.parametrize("num_tokens", [1, 9, *(pytest.param(n, marks=pytest.mark.grid) for n in (2, 8, 64, 65))])
def test_a_split_product_equals_the_plain_one_in_every_shape(num_out: int, num_tokens: int):
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal(shape, np.float32) for shape in ((num_tokens, 16), (num_out, 16)))
    made = linear(jnp.asarray(x), jnp.asarray(weight), SPLIT)
    np.testing.assert_allclose(made, x @ weight.T, atol=1e-4, rtol=0)


@pytest.mark.parametrize("products", [SPLIT, PLAIN, Products(native=native_code())], ids=["split", "plain", "native"])
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_a_weight_in_bfloat16_is_multiplied_by_activations_in_float32(num_tokens: int, products: Products):
    random = np.random.default_rng(0)
    x = random.standard_normal((num_tokens, 96), np.float32)
    weight = jnp.asarray(random.standard_normal((7, 96)), jnp.bfloat16)
    made = linear(jnp.asarray(x), weight, products)
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, x @ np.asarray(weight, np.float32).T, atol=1e-4, rtol=0)


def test_weights_are_split_on_one_cpu_in_float32_alone():
    mesh = DeviceMesh((jax.devices("cpu")[0],))
    assert choose_products(mesh, np.dtype(np.float32)) == Products(SPLIT.num_splits, native_code())
    assert choose_products(mesh, np.dtype(jnp.bfloat16)) == Products(native=native_code())  # for weights in 4 bits
    assert choose_products(DeviceMesh((jax.devices("cpu")[0],) * 2), np.dtype(np.float32)) == PLAIN


def quantized(num_out: int, num_in: int, *, seed: int = 0) -> QuantizedWeight:
    random = np.random.default_rng(seed)
    values = random.integers(-127, 128, (num_out, num_in), np.int8)
    return QuantizedWeight(jnp.asarray(values), jnp.asarray(random.uniform(0.001, 0.01, num_out), jnp.float32))


def in_float(x: np.ndarray, weight: QuantizedWeight) -> np.ndarray:
    """Return the product of the same quantized tokens and weight, summed in float64."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    return (np.rint(x / scale) * scale) @ (np.asarray(weight.values, np.float64) * np.asarray(weight.scale)[:, None]).T


@pytest.mark.parametrize("products", [SPLIT, PLAIN, Products(native=native_code())], ids=["split", "plain", "native"])
@pytest.mark.parametrize("num_out", [24, 7], ids=["divides", "divides by nothing"])
@pytest.mark.parametrize("num_tokens", [1, 17, *(pytest.param(n, marks=pytest.mark.grid) for n in (2, 16))])
def test_a_quantized_product_is_that_of_the_quantized_numbers(num_tokens: int, num_out: int, products):
    x = np.random.default_rng(1).standard_normal((num_tokens, 96), np.float32)
    weight = quantized(num_out, 96)
    np.testing.assert_allclose(linear(jnp.asarray(x), weight, products), in_float(x, weight), atol=1e-4, rtol=0)


def test_a_quantized_product_sums_over_several_axes_and_keeps_the_others():
    x = np.random.default_rng(1).standard_normal((1, 1, 2, 3, 4), np.float32)
    weight = quantized(30, 24)
    shaped = QuantizedWeight(weight.values.reshape(5, 6, 2, 3, 4), weight.scale.reshape(5, 6))
    made = linear(jnp.asarray(x), shaped, SPLIT, num_in_axes=3, dtype=jnp.bfloat16)
    assert (made.shape, made.dtype) == ((1, 1, 5, 6), jnp.bfloat16)
    np.testing.assert_allclose(made.reshape(1, 30).astype(np.float32), in_float(x.reshape(1, 24), weight), rtol=0.01)


def test_tokens_of_zeros_are_zero_and_those_that_are_not_finite_stay_so_and_leave_the_others_alone():
    x = np.random.default_rng(1).standard_normal((4, 96), np.float32)
    x[1] = 0
    x[2, 5], x[3, 5] = np.nan, np.inf
    weight = quantized(24, 96)
    made = np.asarray(linear(jnp.asarray(x), weight, SPLIT))
    np.testing.assert_allclose(made[:1], in_float(x[:1], weight), atol=1e-4, rtol=0)
    assert not made[1].any()
    assert not np.isfinite(made[2:]).any()


def in_fp8(num_out: int, num_in: int) -> QuantizedWeight:
    random = np.random.default_rng(0)
    values = jnp.asarray(random.standard_normal((num_out, num_in), np.float32) * 100).clip(-448, 448).astype(FP8)
    return QuantizedWeight(values, jnp.asarray(random.uniform(0.001, 0.01, num_out), jnp.float32))


@pytest.mark.parametrize("fp8", [Fp8Products.FUSED, Fp8Products.IN_PARTS])
@pytest.mark.parametrize(
    ("num_out", "num_in"),
    [pytest.param(24, 96, id="one part", marks=pytest.mark.grid), pytest.param(700, 1024, id="parts and a rest")],
)
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_a_product_with_a_weight_in_fp8_is_that_of_its_numbers(num_tokens: int, num_out: int, num_in: int, fp8):
    x = np.random.default_rng(1).standard_normal((1, num_tokens, num_in), np.float32)
    weight = in_fp8(num_out, num_in)
    made = linear(jnp.asarray(x), weight, PLAIN, fp8=fp8)
    wide = np.asarray(weight.values, np.float64) * np.asarray(weight.scale)[:, None]
    np.testing.assert_allclose(made, x @ wide.T, atol=2e-4, rtol=1e-5)


def test_a_native_fp8_product_quantizes_tokens_too():
    x = np.random.default_rng(1).standard_normal((3, 96), np.float32)
    x[1] = 0
    weight = in_fp8(24, 96)
    made = linear(jnp.asarray(x), weight, PLAIN, fp8=Fp8Products.NATIVE)
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(448)
    scale[1] = 1
    tokens = np.asarray(jnp.asarray(x / scale).astype(FP8), np.float64) * scale
    wide = np.asarray(weight.values, np.float64) * np.asarray(weight.scale)[:, None]
    np.testing.assert_allclose(made, tokens @ wide.T, atol=2e-4, rtol=1e-5)
    x[2, 5] = np.nan
    made = np.asarray(linear(jnp.asarray(x), weight, PLAIN, fp8=Fp8Products.NATIVE))
    assert (np.isfinite(made[:2]).all(), np.isnan(made[2]).all()) == (True, True)


def test_a_cpu_never_has_a_whole_weight_in_fp8_widened():
    x, weight = jnp.ones((1, 512)), in_fp8(8192, 512)
    compiled = jax.jit(linear, static_argnums=2, static_argnames="fp8").lower(
        x, weight, PLAIN, fp8=Fp8Products.IN_PARTS
    )
    assert compiled.compile().memory_analysis().temp_size_in_bytes < 4 * weight.values.size / 2


@pytest.mark.parametrize(
    ("platform", "capability", "chosen"),
    [
        ("cpu", "", Fp8Products.IN_PARTS),
        ("gpu", "8.0", Fp8Products.FUSED),
        ("gpu", "8.9", Fp8Products.NATIVE),
        ("gpu", "12.0", Fp8Products.NATIVE),
        ("gpu", "gfx942", Fp8Products.FUSED),
        ("tpu", "", Fp8Products.FUSED),
    ],
)
def test_fp8_is_multiplied_as_the_device_can(platform: str, capability: str, chosen: Fp8Products):
    mesh = DeviceMesh((NamedDevice(0, platform, compute_capability=capability),))
    assert choose_fp8_products(mesh) is chosen


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("is_fp8", [False, True], ids=["int8", "fp8"])
@pytest.mark.parametrize("num_tokens", [1, 2, 9])
def test_few_tokens_are_multiplied_as_they_are_and_more_are_quantized(num_tokens: int, is_fp8: bool, dtype):
    x = np.random.default_rng(1).standard_normal((num_tokens, 96), np.float32)
    x = np.asarray(jnp.asarray(x, dtype), np.float32)
    weight = in_fp8(24, 96) if is_fp8 else quantized(24, 96)
    wide = np.asarray(weight.values, np.float64) * np.asarray(weight.scale)[:, None]
    few = Products(widened_tokens=WidenedTokens(int8=2, fp8=2))
    made, quantizing = (
        linear(jnp.asarray(x, dtype), weight, products, fp8=Fp8Products.NATIVE) for products in (few, PLAIN)
    )
    assert made.dtype == dtype
    if num_tokens > 2:
        assert (np.asarray(made) == np.asarray(quantizing)).all()
    else:
        np.testing.assert_allclose(made, x @ wide.T, atol=1e-4 if dtype == jnp.float32 else 0.05, rtol=2**-7)
        assert (np.asarray(made) != np.asarray(quantizing)).any()
    logits = linear(jnp.asarray(x, dtype), weight, few, dtype=jnp.float32, fp8=Fp8Products.NATIVE)
    if num_tokens <= 2:
        np.testing.assert_allclose(logits, x @ wide.T, atol=1e-3, rtol=1e-4)


def test_few_tokens_sum_over_several_axes_and_keep_the_others():
    x = np.random.default_rng(1).standard_normal((1, 1, 2, 3, 4), np.float32)
    weight = quantized(30, 24)
    shaped = QuantizedWeight(weight.values.reshape(5, 6, 2, 3, 4), weight.scale.reshape(5, 6))
    made = linear(jnp.asarray(x), shaped, Products(widened_tokens=WidenedTokens(1, 1)), num_in_axes=3)
    wide = np.asarray(weight.values, np.float64) * np.asarray(weight.scale)[:, None]
    assert made.shape == (1, 1, 5, 6)
    np.testing.assert_allclose(made.reshape(1, 30), x.reshape(1, 24) @ wide.T, atol=1e-4)


@pytest.mark.parametrize(
    ("platform", "capability", "most"),
    [
        ("cpu", "", (0, 0)),
        ("gpu", "8.9", (64, 0)),  # whose FP8 XLA would widen in memory
        ("gpu", "9.0", (64, 64)),
        ("gpu", "12.0", (64, 64)),
        ("tpu", "", (0, 0)),
    ],
)
def test_a_gpu_multiplies_the_tokens_of_a_decode_step_as_they_are(platform: str, capability: str, most):
    mesh = DeviceMesh((NamedDevice(0, platform, compute_capability=capability),))
    assert choose_products(mesh, np.dtype(jnp.bfloat16)).widened_tokens == most


def test_rows_as_long_as_are_served_do_not_overflow():
    weight = QuantizedWeight(jnp.full((2, MAX_INT8_ROW), -128, jnp.int8), jnp.ones(2, jnp.float32))
    for sign in (1.0, -1.0):
        made = linear(jnp.full((2, MAX_INT8_ROW), sign), weight, PLAIN)
        np.testing.assert_allclose(made, np.full((2, 2), -128.0 * sign * MAX_INT8_ROW), rtol=1e-6)


@pytest.mark.parametrize("products", [SPLIT, PLAIN], ids=["in parts", "plain"])
@pytest.mark.parametrize(("num_groups", "has_zeros"), [(1, False), (1, True), (3, False), (3, True)])
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_a_product_in_4_bits_is_that_of_the_numbers_that_groups_stand_for(num_tokens, num_groups, has_zeros, products):
    random = np.random.default_rng(0)
    x = random.standard_normal((num_tokens, 96), np.float32)
    values = random.integers(-8, 8, (5, 6, num_groups, 96 // num_groups))
    scale = random.uniform(0.001, 0.01, (5, 6, num_groups)).astype(np.float32)
    zero = random.integers(-8, 8, scale.shape).astype(np.float32) if has_zeros else np.zeros_like(scale)
    expected = x @ ((values - zero[..., None]) * scale[..., None]).reshape(30, 96).T
    weight = GroupedWeight(
        jnp.asarray(values.reshape(5, 6, 96), jnp.int4), jnp.asarray(scale), jnp.asarray(zero) if has_zeros else None
    )
    made = linear(jnp.asarray(x), weight, products, dtype=jnp.bfloat16)
    assert (made.shape, made.dtype) == ((num_tokens, 5, 6), jnp.bfloat16)
    np.testing.assert_allclose(
        linear(jnp.asarray(x), weight, products).reshape(num_tokens, 30), expected, atol=1e-4, rtol=0
    )
