"""What our models see equals transformers'."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.device.mesh import DeviceMesh
from service.device.native.library import native_code
from service.errors import UnsupportedModel
from service.kernels.products.linear import PLAIN, Products
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.models.vision import rounded_positions
from service.weights.assembly import assemble_weights
from service.weights.headers import check_tensors
from tests.parity.vision_cases import (
    CONFIG,
    GRIDS,
    QWEN_CONFIG,
    QWEN_REFERENCE_PATH,
    REFERENCE_PATH,
    patches,
    pictures,
    qwen_tensors,
    tensors,
)
from tests.tolerances import SAME_MODEL_ATOL


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("idefics3")
    save_file(tensors(), folder / "model.safetensors")
    model = Decoder(read_config("test", CONFIG), kernel=PagedReference())
    found = load_file(folder / "model.safetensors")
    check_tensors("test", model.weight_specs(), {name: tensor.shape for name, tensor in found.items()})
    return model, assemble_weights(model.weight_specs(), found, mesh=DeviceMesh((jax.devices()[0],)))


def rows_of(model: Decoder, weights: dict[str, jax.Array], picture: np.ndarray) -> jax.Array:
    hidden = model.encoder.begin(weights, jnp.asarray(picture))
    for group in model.encoder.layer_groups:
        hidden = model.encoder.run_layer_group(group, [weights[name] for name in group.weights], hidden)
    return model.encoder.end(weights, hidden)


def test_the_rows_of_a_picture_equal_transformers(loaded):
    with np.load(REFERENCE_PATH) as reference:
        for picture, expected in zip(pictures(), reference["rows"], strict=True):
            np.testing.assert_allclose(rows_of(*loaded, picture), expected, atol=SAME_MODEL_ATOL, rtol=0)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3_vl")
    save_file(qwen_tensors(), folder / "model.safetensors")
    model = Decoder(read_config("test", QWEN_CONFIG), kernel=PagedReference())
    found = load_file(folder / "model.safetensors")
    check_tensors("test", model.weight_specs(), {name: tensor.shape for name, tensor in found.items()})
    return model, assemble_weights(model.weight_specs(), found, mesh=DeviceMesh((jax.devices()[0],)))


@pytest.mark.parametrize("products", [PLAIN, Products(native=native_code())], ids=["plain", "native"])
@pytest.mark.parametrize("num_rows", [6, 9])
def test_the_rows_of_pictures_of_any_shape_equal_transformers_whatever_they_are_padded_to(qwen, num_rows, products):
    model, weights = qwen
    encoder = replace(model, products=products).encoder_of(num_rows)

    @jax.jit
    def encode(weights, features):
        state = encoder.begin(weights, features)
        for group in encoder.layer_groups:
            state = encoder.run_layer_group(group, [weights[name] for name in group.weights], state)
        return encoder.end(weights, state)

    found = []
    for number, (rows, columns) in enumerate(GRIDS):
        own = patches(number)
        padded = np.concatenate([own, np.full((4 * num_rows - len(own), own.shape[1]), 7, np.uint8)])
        found.append(encode(weights, (padded, np.array([rows, columns], np.int32)))[: rows * columns // 4])
    with np.load(QWEN_REFERENCE_PATH) as reference:
        np.testing.assert_allclose(np.concatenate(found), reference["rows"], atol=SAME_MODEL_ATOL, rtol=0)


@pytest.mark.parametrize("count", [1, 2, 26, 27, 32])
def test_every_patch_has_a_position_of_its_own_but_where_the_reference_rounds_down(count):
    positions = rounded_positions(count).reshape(count, count)
    assert positions.min() >= 0
    assert positions.max() < count**2
    assert (np.abs(positions - np.arange(count**2).reshape(count, count)) <= count + 1).all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scale_factor": 3}, "scale_factor = 3 does not divide the 4 patches"),
        ({"vision_config": "siglip"}, "vision_config is str"),
        ({"text_config": {**CONFIG["text_config"], "model_type": "mistral"}}, "model_type = 'mistral'"),
        (
            {"vision_config": {**CONFIG["vision_config"], "num_attention_heads": 5}},
            "hidden_size = 24 is not a multiple",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("test", CONFIG | changes)
