"""Models with recurrent layers: their files as published, and their numbers after thousands of tokens."""

import json
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.device.mesh import DeviceMesh
from service.errors import MalformedCheckpoint
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.weights.assembly import assemble_weights
from service.weights.headers import check_tensors
from service.weights.names import resolve
from tests.models.whole_step import WholeStep
from tests.parity.family_cases import FAMILY_CASES
from tests.parity.test_reference_logits import in_one_chunk
from tests.tolerances import SAME_MODEL_ATOL

MESH = DeviceMesh((jax.devices()[0],))


def case_of(name):
    return next(case for case in FAMILY_CASES if case.name == name)


def specs_of(config):
    return Decoder(read_config("test", config), kernel=PagedReference()).weight_specs()


def shapes_of(tensors):
    return {name: tensor.shape for name, tensor in tensors.items()}


@pytest.mark.parametrize(("name", "model_type"), [("qwen3_5", "qwen3_5"), ("qwen3_5_moe", "qwen3_5_moe")])
def test_a_file_without_its_vision_model_and_with_layers_that_predict_further_is_served_for_its_text(name, model_type):
    case = case_of(name)
    text = json.loads(json.dumps(case.hub_config))
    config = {"model_type": model_type, "text_config": text, "vision_config": None, "image_token_id": 90}
    model = Decoder(read_config("test", config), kernel=PagedReference())
    assert model.encoder_of(64) is None
    tensors = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in case.tensors().items()
    }
    further = {"mtp.fc.weight": np.ones((32, 64), np.float32), "mtp.layers.0.input_layernorm.weight": np.ones(32)}
    tensors |= further | {"model.visual.patch_embed.proj.weight": np.ones((8, 3, 2, 4, 4), np.float32)}
    check_tensors("test", model.weight_specs(), shapes_of(tensors))
    in_one_chunk(case, model, assemble_weights(model.weight_specs(), tensors, mesh=MESH))
    with pytest.raises(MalformedCheckpoint, match="is missing"):
        check_tensors("test", model.weight_specs(), shapes_of(further))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        *(("qwen3_5", f"linear_attn.{tensor}") for tensor in ("A_log", "conv1d.weight", "dt_bias")),
        *(("granite_4_hybrid", f"mamba.{tensor}") for tensor in ("A_log", "conv1d.weight", "dt_bias", "D")),
        *(("olmo_hybrid", f"linear_attn.{tensor}") for tensor in ("A_log", "k_conv1d.weight")),
        *(("nemotron_h", f"mixer.{tensor}") for tensor in ("A_log", "conv1d.weight")),
        *(("hero", tensor) for tensor in ("self_attn.sconv_k.weight", "sconv_attn.weight", "sconv_mlp.weight")),
        ("lfm2", "conv.conv.weight"),
    ],
)
def test_a_tensor_without_which_a_state_is_nothing_is_missed_by_name(name, tensor):
    case = case_of(name)
    tensors = {name: array for name, array in case.tensors().items() if not name.endswith(f"0.{tensor}")}
    with pytest.raises(MalformedCheckpoint, match=tensor.replace(".", r"\.")):
        check_tensors("test", specs_of(case.hub_config), shapes_of(tensors))


def test_the_norms_of_olmo_hybrid_are_found_under_the_names_that_transformers_saves_and_has_in_memory():
    case = case_of("olmo_hybrid")
    specs, names = specs_of(case.hub_config), list(case.tensors())
    saved = [name.replace("2.post_attention_layernorm", "2.feedforward_layer_norm") for name in names]
    in_memory = [
        name.replace("feedforward_layer_norm", "post_attention_layernorm").replace(
            "attention_layer_norm", "input_layernorm"
        )
        for name in names
    ]
    for stored in (names, saved, in_memory):
        found = resolve("test", specs, {"file": stored})
        assert not found.copies
        assert not found.left_out
        assert {own: tensor.name for own, tensor in found.tensors.items()} == dict(zip(names, stored, strict=True))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen3_5", "linear_attn.A_log"),
        ("qwen3_5", "linear_attn.dt_bias"),
        ("olmo_hybrid", "linear_attn.A_log"),
        ("granite_4_hybrid", "mamba.A_log"),
        ("bamba", "mamba.D"),
    ],
)
def test_a_decay_that_is_not_finite_is_refused_by_name(name, tensor, value):
    case = case_of(name)
    tensors = case.tensors()
    tensors[f"model.layers.0.{tensor}"][2] = value
    with pytest.raises(
        MalformedCheckpoint, match=rf"layers\.0\.{re.escape(tensor)}: has a value that is NaN or infinite"
    ):
        assemble_weights(specs_of(case.hub_config), tensors, mesh=MESH)


def test_a_decay_in_bfloat16_is_widened_and_never_narrowed():
    case = case_of("qwen3_5")
    tensors = case.tensors()
    narrow = tensors["model.layers.0.linear_attn.A_log"].astype(ml_dtypes.bfloat16)
    tensors["model.layers.0.linear_attn.A_log"] = narrow
    config = read_config("test", json.loads(json.dumps(case.hub_config)))
    specs = Decoder(config, np.dtype(ml_dtypes.bfloat16), kernel=PagedReference()).weight_specs()
    weights = assemble_weights(specs, tensors, mesh=MESH)
    assert weights["layers.0.decay"].dtype == weights["layers.0.decay_bias"].dtype == np.float32
    np.testing.assert_array_equal(np.asarray(weights["layers.0.decay"]).reshape(-1), narrow.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("lfm2", "lfm2_moe", "lfm3", "hero", "qwen3_5", "qwen3_5_moe", "qwen3_next", "olmo_hybrid"),
        *("granite_4_hybrid", "granite_4_experts", "bamba", "falcon_h1", "nemotron_h", "nemotron_h_latent"),
    ],
)
def test_two_thousand_tokens_decoded_one_by_one_have_the_logits_of_one_pass(name, tmp_path):
    case, length, page_size = case_of(name), 2048, 64
    config = {**json.loads(json.dumps(case.hub_config)), "max_position_embeddings": 4096}
    model = Decoder(read_config("test", config), kernel=PagedReference())
    save_file(case.tensors(), tmp_path / "model.safetensors")
    weights = assemble_weights(model.weight_specs(), load_file(tmp_path / "model.safetensors"), mesh=MESH)
    token_ids = np.random.RandomState(3).randint(0, 96, length).astype(np.int32)
    pages = jnp.arange(length // page_size, dtype=jnp.int32)[None]
    step, found = WholeStep(model), {}
    for width in (length, 1):
        caches, found[width] = step.empty_caches(CacheLayout(length // page_size, page_size, num_states=1)), []
        for start in range(0, length, width):
            paging = Paging(jnp.array([start], jnp.int32), jnp.array([width], jnp.int32), pages)
            part = jnp.asarray(token_ids[None, start : start + width])
            logits, caches = step(weights, caches, part, paging)
            found[width].append(np.asarray(logits)[0])
    np.testing.assert_allclose(np.concatenate(found[1]), found[length][0], atol=SAME_MODEL_ATOL, rtol=0)
