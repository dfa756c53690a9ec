"""The pictures of a Qwen 3.5 have transformers' rows, and their tokens its positions."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.device.mesh import DeviceMesh
from service.engine.batch import positions_of
from service.engine.request import Medium, PlacedMedium
from service.errors import UnsupportedModel
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.weights.assembly import assemble_weights
from service.weights.names import resolve
from tests.parity.vision_cases import (
    GRIDS,
    IMAGE_TOKEN,
    QWEN35_CONFIG,
    QWEN35_REFERENCE_PATH,
    patches,
    qwen35_tensors,
    qwen_token_ids,
)
from tests.tolerances import SAME_MODEL_ATOL


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3_5")
    save_file(qwen35_tensors(), folder / "model.safetensors")
    model, mesh = Decoder(read_config("test", QWEN35_CONFIG), kernel=PagedReference()), DeviceMesh((jax.devices()[0],))
    return model, assemble_weights(model.weight_specs(), load_file(folder / "model.safetensors"), mesh=mesh)


@pytest.mark.parametrize("num_rows", [6, 9])
def test_the_rows_of_pictures_of_any_shape_equal_transformers_whatever_they_are_padded_to(qwen, num_rows):
    model, weights = qwen
    encoder = model.encoder_of(num_rows)

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
        found.append(encode(weights, (padded, np.array([rows, columns], np.int32)))[: rows * columns // 4, 0])
    with np.load(QWEN35_REFERENCE_PATH) as reference:
        np.testing.assert_allclose(np.concatenate(found), reference["rows"], atol=SAME_MODEL_ATOL, rtol=0)


def test_positions_of_time_row_and_column_equal_transformers():
    ids, media, start = qwen_token_ids().tolist(), [], 0
    for rows, columns in GRIDS:
        medium = Medium(b"", None, rows * columns // 4)
        media.append(PlacedMedium(medium, ids.index(IMAGE_TOKEN, start), (rows // 2, columns // 2)))
        start = media[-1].end
    with np.load(QWEN35_REFERENCE_PATH) as reference:
        np.testing.assert_array_equal(positions_of(media, 0, len(ids)), reference["positions"])


def test_a_file_without_an_encoder_is_that_of_a_text_model_whose_positions_are_one():
    text = QWEN35_CONFIG["text_config"] | {"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}}
    config = read_config("m", QWEN35_CONFIG | {"text_config": text, "vision_config": None})
    assert config.image_encoder is None
    assert [rotation.sections for rotation in config.rotations] == [()]
    assert [rotation.sections for rotation in read_config("m", QWEN35_CONFIG).rotations] == [(2, 1, 1)]


def test_layers_that_predict_further_tokens_are_left_out_by_name():
    specs = Decoder(read_config("m", QWEN35_CONFIG)).weight_specs()
    drafts = ["mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight", "mtp.norm.weight"]
    left_out = resolve("m", specs, {"model.safetensors": [*qwen35_tensors(), *drafts]}).left_out
    assert left_out == {"layers that predict further tokens": drafts}


TEXT, VISION = QWEN35_CONFIG["text_config"], QWEN35_CONFIG["vision_config"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vision_config": "qwen"}, "vision_config is str"),
        ({"vision_config": {**VISION, "model_type": "pixtral"}}, "model_type = 'pixtral'"),
        ({"vision_config": {**VISION, "deepstack_visual_indexes": [1]}}, "deepstack_visual_indexes"),
        ({"vision_config": {**VISION, "out_hidden_size": 64}}, "out_hidden_size = 64 is not served; only 32"),
        ({"vision_config": {**VISION, "num_heads": 5}}, "hidden_size = 24 has no quarters for num_heads = 5"),
        (
            {"text_config": {**TEXT, "rope_parameters": {**TEXT["rope_parameters"], "mrope_section": [2, 2, 1]}}},
            "mrope_section",
        ),
        (
            {"text_config": {**TEXT, "rope_parameters": {**TEXT["rope_parameters"], "mrope_interleaved": False}}},
            "mrope_section",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", QWEN35_CONFIG | changes)
