"""Logits of the int8 step equal a float32 computation of the same quantized weights and activations.

The sums of both are exact, so that no activation rounds to another neighbour. Those of the FP8 step of a CPU, whose
activations are wide, equal a float32 computation of the same weights.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import expand_dims

from service.device.mesh import DeviceMesh
from service.kernels.blocks import BlockAttention
from service.kernels.products.linear import PLAIN, SPLIT, Products
from service.kernels.products.quantized import FP8, Fp8Products, QuantizedWeight
from service.models.decoder import Decoder
from service.models.quantization import Quantization
from service.models.registry import read_config
from service.models.weight_spec import FLOAT32
from service.weights.assembly import assemble_weights
from tests.parity.cases import CASES
from tests.parity.test_reference_logits import logits_by_chunk
from tests.process import run_on_devices
from tests.tolerances import SAME_QUANTIZED_MODEL_ATOL

NUM_TOKENS = 12


def in_float32(x, weight: QuantizedWeight, products: Products, *, num_in_axes: int = 1, **_):
    """Return a product of int8 numbers in float32, which holds sums of so few of them exactly."""
    axes = tuple(range(-num_in_axes, 0))
    largest = jnp.abs(x).max(axes, keepdims=True)
    scale = jnp.where(largest == 0, 1, largest / 127)
    sums = jnp.tensordot(jnp.round(x / scale), weight.values.astype(jnp.float32), (axes, axes), precision="highest")
    token_axes = x.ndim - num_in_axes
    of_tokens = expand_dims(scale.squeeze(axes), range(token_axes, sums.ndim))
    return sums * (of_tokens * expand_dims(weight.scale, range(token_axes)))


@pytest.mark.parametrize(
    ("name", "products", "chunk"),
    [("llama_biases", SPLIT, 1), pytest.param("qwen3", PLAIN, NUM_TOKENS, marks=pytest.mark.slow)],
)
def test_the_int8_step_equals_float32_with_the_same_numbers(
    name: str, products: Products, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    case = next(case for case in CASES if case.name == name)
    config, tokens = read_config("test", case.hub_config), case.token_ids[:NUM_TOKENS]
    model = Decoder(config, FLOAT32, BlockAttention(), products, Quantization.INT8)
    weights = assemble_weights(model.weight_specs(), case.tensors(), mesh=DeviceMesh((jax.devices()[0],)))
    made = logits_by_chunk(model, weights, tokens, chunk)
    monkeypatch.setattr("service.models.multiply.linear", in_float32)
    expected = logits_by_chunk(model, weights, tokens, chunk)
    np.testing.assert_allclose(made, expected, atol=SAME_QUANTIZED_MODEL_ATOL, rtol=0)
    # And they are near those of the wide model, whose standard deviation is about 2.
    wide = np.load(case.reference_path)["logits"][:NUM_TOKENS]
    assert 0.001 < np.abs(made - wide).max() < 0.5


@pytest.mark.slow
def test_the_fp8_step_equals_float32_with_the_same_weights():
    case = next(case for case in CASES if case.name == "llama_biases")
    config, tokens = read_config("test", case.hub_config), case.token_ids[:NUM_TOKENS]
    model = Decoder(config, FLOAT32, BlockAttention(), SPLIT, Quantization.FP8, fp8=Fp8Products.IN_PARTS)
    weights = assemble_weights(model.weight_specs(), case.tensors(), mesh=DeviceMesh((jax.devices()[0],)))
    wide = dict(weights)
    for spec in model.weight_specs():
        if spec.scale is not None:
            assert weights[spec.name].dtype == FP8
            scale = weights[spec.scale]
            wide[spec.name] = weights[spec.name].astype(FLOAT32) * expand_dims(
                scale, range(scale.ndim, len(spec.shape))
            )
    expected = logits_by_chunk(Decoder(config, FLOAT32, BlockAttention(), SPLIT), wide, tokens, 1)
    np.testing.assert_allclose(
        logits_by_chunk(model, weights, tokens, 1), expected, atol=SAME_QUANTIZED_MODEL_ATOL, rtol=0
    )


@pytest.mark.slow
def test_several_devices_have_a_part_of_each_int8_weight_and_the_logits_of_one():
    found = run_on_devices("tests.parity.quantized_devices_process", num_devices=4)
    assert [found[count]["part_of_down"] for count in ("2", "4")] == [[32, 24], [32, 12]]
    for facts in found.values():
        assert facts["gathered_weights"] == 0
        assert facts["largest_difference"] <= SAME_QUANTIZED_MODEL_ATOL
