"""The call in C++ adds what plain JAX adds, for every mixture of adapters, in both kinds of instructions."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.native.library import NativeCode, native_code
from service.kernels.products.adapters import SlotWeights, add_adapters
from service.kernels.products.linear import PLAIN, Products

pytestmark = pytest.mark.skipif(not native_code().has_products, reason="there are no products in C++ here")

NUM_SLOTS = 3
# Of the tensors of a weight: axes of its output, the one along which they lie, their sizes; rank and input.
WEIGHTS = [
    ((64,), 0, (64,), 16, 96),
    ((3, 5, 8), 1, (3, 1, 1), 4, 33),
    ((2, 101), 0, (1, 1), 1, 576),
    ((7,), 0, (7,), 3, 5),
]
MIXTURES = {
    "none": [-1] * 9,
    "one": [1] * 9,
    "all of one token": [2],
    "mixed": [0, -1, 1, 0, 2, 2, -1, 1, 1],
    "many": [-1, 0, 2] * 40 + [1] * 30,
}


def check(expected: str, weights: Sequence[Any] = WEIGHTS, mixtures: Iterable[str] = MIXTURES) -> None:
    """Compare all of some weights with some mixtures."""
    native = native_code()
    assert native.value == expected
    random = np.random.default_rng(0)
    for out_shape, axis, sizes, rank, num_in in weights:
        a = random.standard_normal((NUM_SLOTS, len(sizes), rank, num_in), np.float32)
        b = random.standard_normal((NUM_SLOTS, rank, *out_shape), np.float32)
        for mixture in mixtures:
            slots = np.array(MIXTURES[mixture], np.int32)
            x = random.standard_normal((len(slots), num_in), np.float32)
            out = random.standard_normal((len(slots), *out_shape), np.float32)
            arguments = jnp.asarray(out), jnp.asarray(x)
            own = jnp.asarray(slots)

            def added(products: Products, a: np.ndarray, of=arguments, own=own, b=b, parts=(axis, sizes)):
                def add(product: jax.Array, tokens: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
                    return add_adapters(product, tokens, SlotWeights(first, second, parts), own, products)

                return np.asarray(jax.jit(add)(*of, jnp.asarray(a), jnp.asarray(b)))

            made = added(Products(native=native), a)
            np.testing.assert_allclose(made, added(PLAIN, a), rtol=0, atol=2e-5 * num_in)
            np.testing.assert_array_equal(made[slots < 0], out[slots < 0])
            broken = a.copy()
            broken[1] = np.nan
            np.testing.assert_array_equal(added(Products(native=native), broken)[slots != 1], made[slots != 1])
            assert np.isnan(added(Products(native=native), broken)[slots == 1]).all()


def test_native_and_plain_products_agree_and_an_adapter_reaches_its_own_tokens_alone():
    check(native_code().value, WEIGHTS[1:2], ["mixed", "many"])


@pytest.mark.grid
def test_native_and_plain_products_agree_in_every_shape_and_mixture():
    check(native_code().value)


@pytest.mark.grid
@pytest.mark.skipif(native_code() in (NativeCode.AVX2, NativeCode.NEON), reason="there are no others here")
def test_the_other_instructions_do_the_same():
    code = "from tests.kernels.test_adapters import check; check('avx2')"
    variables = {**os.environ, "XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True)


def test_a_token_gets_the_same_sums_in_every_batch():
    out_shape, axis, sizes, rank, num_in = WEIGHTS[1]
    random = np.random.default_rng(1)
    a = jnp.asarray(random.standard_normal((NUM_SLOTS, len(sizes), rank, num_in), np.float32))
    b = jnp.asarray(random.standard_normal((NUM_SLOTS, rank, *out_shape), np.float32))
    slots = np.array(MIXTURES["many"], np.int32)
    x = random.standard_normal((len(slots), num_in), np.float32)
    out = random.standard_normal((len(slots), *out_shape), np.float32)
    add = jax.jit(
        lambda out, x, slots: add_adapters(
            out, x, SlotWeights(a, b, (axis, sizes)), slots, Products(native=native_code())
        )
    )
    whole = np.asarray(add(out, x, slots))
    for first, after in ((0, 1), (4, 7), (100, 150)):
        np.testing.assert_array_equal(add(out[first:after], x[first:after], slots[first:after]), whole[first:after])
