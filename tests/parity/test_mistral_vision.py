"""A Mistral 3 that sees equals transformers': its rows, and texts with pictures in every cut."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_checkpoint
from service.device.mesh import DeviceMesh
from service.errors import MalformedCheckpoint, UnsupportedModel
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from tests.models.whole_step import WholeStep
from tests.parity.vision_cases import (
    IMAGE_TOKEN,
    MISTRAL_CONFIG,
    MISTRAL_GRIDS,
    MISTRAL_REFERENCE_PATH,
    cut_patches,
    mistral_pictures,
    mistral_tensors,
    mistral_token_ids,
)
from tests.served import DEMO
from tests.tolerances import SAME_MODEL_ATOL, SAME_TOKENS_OTHER_STEPS_ATOL

PAGE_SIZE, WIDTH = 4, 40
PAGES = np.random.RandomState(3).permutation(16).astype(np.int32)
LAYOUT = CacheLayout(num_pages=16, page_size=PAGE_SIZE)


def as_on_the_hub(name: str) -> str:
    """Return the name of a tensor in the files of the model's authors."""
    bare = name.removeprefix("model.").replace("language_model.", "language_model.model.", 1)
    return f"language_model.{bare}" if bare == "lm_head.weight" else bare


def load(folder: Path, names=str, *, config=MISTRAL_CONFIG, left_out=()):
    folder.mkdir(exist_ok=True)
    shutil.copy(DEMO / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor for name, tensor in mistral_tensors().items() if not name.startswith(left_out)}
    save_file({names(name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    located = locate(str(folder), LocalSource)
    model, limits = Decoder(read_config("m", located.hub_config)), LoadLimits(None, Progress(), 1 << 20)
    mesh = DeviceMesh((jax.devices()[0],))
    return model, load_checkpoint(located, model.weight_specs(), mesh=mesh, limits=limits).weights


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    return load(tmp_path_factory.mktemp("mistral3"))


def rows_of(model: Decoder, weights, num_rows: int) -> np.ndarray:
    """Return the rows of every picture, each padded to so many."""
    encoder = model.encoder_of(num_rows)
    assert encoder is not None

    @jax.jit
    def encode(weights, features):
        state = encoder.begin(weights, features)
        for group in encoder.layer_groups:
            state = encoder.run_layer_group(group, [weights[name] for name in group.weights], state)
        return encoder.end(weights, state)

    found = []
    for picture, (rows, columns) in zip(mistral_pictures(), MISTRAL_GRIDS, strict=True):
        found.append(encode(weights, cut_patches(picture, 4, 2, num_rows))[: rows * columns // 4, 0])
    return np.concatenate(found)


@pytest.mark.parametrize("num_rows", [6, 9])
def test_the_rows_of_pictures_of_any_shape_equal_transformers_whatever_they_are_padded_to(mistral, num_rows):
    with np.load(MISTRAL_REFERENCE_PATH) as reference:
        np.testing.assert_allclose(rows_of(*mistral, num_rows), reference["rows"], atol=SAME_MODEL_ATOL, rtol=0)


def test_logits_of_a_text_with_pictures_equal_transformers_in_every_cut(mistral):
    model, weights = mistral
    step, ids = WholeStep(model), mistral_token_ids()
    seen = np.full((len(ids), model.hidden_size), np.nan, np.float32)
    seen[ids == IMAGE_TOKEN] = rows_of(model, weights, 6)

    def logits(ends):
        found, caches = [], step.empty_caches(LAYOUT)
        for start, end in zip([0, *ends], ends, strict=False):
            padded = (
                np.pad(part[start:end], ((0, WIDTH - end + start), *((0, 0),) * (part.ndim - 1)))[None]
                for part in (ids, seen)
            )
            own_ids, own_seen = map(jnp.asarray, padded)
            paging = Paging(jnp.array([start]), jnp.array([end - start]), jnp.asarray(PAGES[None]))
            out, caches = step(weights, caches, own_ids, paging, seen=own_seen)
            found.append(np.asarray(out)[0, : end - start])
        return np.concatenate(found)

    whole = logits([len(ids)])
    with np.load(MISTRAL_REFERENCE_PATH) as reference:
        np.testing.assert_allclose(whole, reference["logits"], atol=SAME_MODEL_ATOL, rtol=0)
    for cut in range(1, len(ids)):
        np.testing.assert_allclose(logits([cut, len(ids)]), whole, atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)


def test_files_of_the_authors_have_the_same_weights(mistral, tmp_path):
    _, expected = mistral
    _, weights = load(tmp_path / "model", as_on_the_hub)
    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_file_without_an_encoder_is_that_of_a_text_model(tmp_path):
    config = {key: value for key, value in MISTRAL_CONFIG.items() if key != "vision_config"}
    model, weights = load(tmp_path / "model", config=config)
    assert model.config.image_encoder is None
    assert not any(name.startswith("encoder.") for name in weights)


def test_an_encoder_of_which_a_part_is_missing_is_named(tmp_path):
    with pytest.raises(MalformedCheckpoint, match=r"vision_tower\.patch_conv\.weight.*is missing"):
        load(tmp_path / "model", left_out=("model.vision_tower.",))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vision_config": "pixtral"}, "vision_config is str"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "model_type = 'siglip_vision_model'"),
        ({"vision_config": {**MISTRAL_CONFIG["vision_config"], "num_attention_heads": 5}}, "has no quarters for num_a"),
        ({"vision_config": {**MISTRAL_CONFIG["vision_config"], "head_dim": 16}}, "head_dim = 16 is not served; only 8"),
        ({"vision_config": {**MISTRAL_CONFIG["vision_config"], "num_channels": 1}}, "num_channels = 1"),
        ({"vision_config": {**MISTRAL_CONFIG["vision_config"], "patch_size": 0}}, "patch_size"),
        ({"vision_config": {**MISTRAL_CONFIG["vision_config"], "rope_theta": -1.0, "rope_parameters": None}}, "theta"),
        ({"vision_feature_layer": -2}, "vision_feature_layer = -2"),
        ({"vision_feature_layer": [-1, -2]}, "vision_feature_layer"),
        ({"spatial_merge_size": 0}, "spatial_merge_size"),
        ({"projector_hidden_act": "mish"}, "projector_hidden_act = 'mish'"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", MISTRAL_CONFIG | changes)
