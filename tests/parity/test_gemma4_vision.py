"""A Gemma 4 that sees equals transformers': its rows, and texts with pictures in every cut that leaves them whole.

Of the smaller models, whose pictures do not see themselves, in every cut.
"""

import json
import shutil
from dataclasses import replace
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
from service.device.native.library import native_code
from service.errors import MalformedCheckpoint, UnsupportedModel
from service.kernels.cache_layout import CacheLayout
from service.kernels.native_pages import NativePagedAttention
from service.kernels.paging import Paging
from service.kernels.products.linear import PLAIN, Products
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from tests.kernels.emulated import TRITON
from tests.models.whole_step import WholeStep
from tests.parity.vision_cases import (
    GEMMA4_CONFIGS,
    GEMMA4_GRIDS,
    IMAGE_TOKEN,
    cut_patches,
    gemma4_pictures,
    gemma4_reference,
    gemma4_tensors,
    gemma4_token_ids,
)
from tests.served import DEMO
from tests.tolerances import SAME_MODEL_ATOL, SAME_TOKENS_OTHER_STEPS_ATOL

PAGE_SIZE, WIDTH = 4, 40
PAGES = np.random.RandomState(3).permutation(16).astype(np.int32)
LAYOUT = CacheLayout(num_pages=16, page_size=PAGE_SIZE)
LARGE, SMALL = GEMMA4_CONFIGS
KERNELS = {"reference": PagedReference(), "native": NativePagedAttention(), "gpu": TRITON}


def load(folder: Path, name: str, *, config=None, left_out=(), more=()):
    folder.mkdir(exist_ok=True)
    shutil.copy(DEMO / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(GEMMA4_CONFIGS[name] if config is None else config))
    tensors = {key: tensor for key, tensor in gemma4_tensors(name).items() if not key.startswith(left_out)}
    save_file(tensors | dict.fromkeys(more, np.zeros(3, np.float32)), folder / "model.safetensors")
    located = locate(str(folder), LocalSource)
    model, limits = Decoder(read_config("m", located.hub_config)), LoadLimits(None, Progress(), 1 << 20)
    mesh = DeviceMesh((jax.devices()[0],))
    return model, load_checkpoint(located, model.weight_specs(), mesh=mesh, limits=limits).weights


@pytest.fixture(scope="module", params=GEMMA4_CONFIGS)
def gemma(request, tmp_path_factory):
    return request.param, *load(tmp_path_factory.mktemp(request.param), request.param)


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

    return np.concatenate(
        [
            encode(weights, cut_patches(picture, 4, 3, num_rows))[: rows * columns // 9, 0]
            for picture, (rows, columns) in zip(gemma4_pictures(), GEMMA4_GRIDS, strict=True)
        ]
    )


@pytest.mark.parametrize("products", [PLAIN, Products(native=native_code())], ids=["plain", "native"])
@pytest.mark.parametrize("num_rows", [6, 9])
def test_the_rows_of_pictures_of_any_shape_equal_transformers_whatever_they_are_padded_to(gemma, num_rows, products):
    name, model, weights = gemma
    with np.load(gemma4_reference(name)) as reference:
        found = rows_of(replace(model, products=products), weights, num_rows)
        np.testing.assert_allclose(found, reference["rows"], atol=SAME_MODEL_ATOL, rtol=0)


@pytest.mark.parametrize("gemma", [SMALL], indirect=True)
def test_limits_are_in_effect(gemma):
    _, model, weights = gemma
    wide = {key: array * 100 if key.endswith("_limits") else array for key, array in weights.items()}
    assert np.abs(rows_of(model, wide, 6) - rows_of(model, weights, 6)).max() > 0.1


@pytest.mark.parametrize(
    ("kernel", "stride"), [("reference", 3), ("native", 1), pytest.param("gpu", 5, marks=pytest.mark.grid)]
)
def test_logits_of_a_text_with_pictures_equal_transformers_in_every_cut(gemma, kernel, stride):
    if kernel == "native" and not native_code().has_products:
        pytest.skip("no native code for this processor")
    name, model, weights = gemma
    ids = gemma4_token_ids()
    seen = np.full((len(ids), model.hidden_size), np.nan, np.float32)
    seen[ids == IMAGE_TOKEN] = rows_of(model, weights, 6)
    first = np.flatnonzero((ids == IMAGE_TOKEN) & (np.roll(ids, 1) != IMAGE_TOKEN))
    blocks = [(begin, begin + rows * columns // 9) for begin, (rows, columns) in zip(first, GEMMA4_GRIDS, strict=True)]
    ahead = np.zeros(len(ids), np.int32)
    if name == LARGE:
        for begin, end in blocks:
            ahead[begin:end] = np.arange(end - begin)[::-1]

    def logits(step, ends):
        found, caches = [], step.empty_caches(LAYOUT)
        for start, end in zip([0, *ends], ends, strict=False):
            padded = (
                np.pad(part[start:end], ((0, WIDTH - end + start), *((0, 0),) * (part.ndim - 1)))[None]
                for part in (ids, seen, ahead)
            )
            own_ids, own_seen, own_ahead = map(jnp.asarray, padded)
            paging = Paging(jnp.array([start]), jnp.array([end - start]), jnp.asarray(PAGES[None]))
            if name == LARGE:
                paging = paging._replace(ahead=own_ahead)
            out, caches = step(weights, caches, own_ids, paging, seen=own_seen)
            found.append(np.asarray(out)[0, : end - start])
        return np.concatenate(found)

    step = WholeStep(replace(model, kernel=KERNELS[kernel]))
    whole = logits(step, [len(ids)])
    with np.load(gemma4_reference(name)) as reference:
        np.testing.assert_allclose(whole, reference["logits"], atol=SAME_MODEL_ATOL, rtol=0)
    cuts = [cut for cut in range(1, len(ids)) if name == SMALL or not any(a < cut < b for a, b in blocks)]
    for cut in cuts[::stride]:
        found = logits(step, [cut, len(ids)])
        np.testing.assert_allclose(found, whole, atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)


def test_a_file_without_an_encoder_is_that_of_a_text_model(tmp_path):
    model, weights = load(tmp_path / "model", LARGE, config=GEMMA4_CONFIGS[LARGE] | {"vision_config": None})
    assert model.config.image_encoder is None
    assert not model.config.looks_ahead
    assert not any(name.startswith("encoder.") for name in weights)


def test_what_a_file_does_not_say_of_its_encoder_is_as_transformers_has_it():
    values = GEMMA4_CONFIGS[LARGE] | {"vision_config": {"model_type": "gemma4_vision"}}
    encoder = read_config("m", values | {"vision_soft_tokens_per_image": None}).image_encoder
    assert encoder is not None
    assert (encoder.theta, encoder.patch_size, encoder.merge_size, encoder.usual_rows) == (100.0, 16, 3, 280)
    assert (encoder.num_positions, len(encoder.layers), encoder.has_limits) == (10_240, 16, False)


def test_what_hears_is_left_out(tmp_path):
    model, _ = load(
        tmp_path / "model",
        LARGE,
        config=GEMMA4_CONFIGS[LARGE] | {"audio_config": {"model_type": "gemma4_audio"}},
        more=("model.audio_tower.output_proj.bias", "model.embed_audio.embedding_projection.weight"),
    )
    assert model.config.image_encoder is not None


def test_an_encoder_of_which_a_part_is_missing_is_named(tmp_path):
    with pytest.raises(MalformedCheckpoint, match=r"vision_tower\.patch_embedder\.input_proj\.weight.*is missing"):
        load(tmp_path / "model", LARGE, left_out=("model.vision_tower.",))


VISION = GEMMA4_CONFIGS[LARGE]["vision_config"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vision_config": "gemma"}, "vision_config is str"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "model_type = 'siglip_vision_model'"),
        ({"vision_config": {**VISION, "head_dim": 10}}, "head_dim = 10 of vision_config has no quarters"),
        ({"vision_config": {**VISION, "num_key_value_heads": 1}}, "num_key_value_heads = 1"),
        ({"vision_config": {**VISION, "attention_bias": True}}, "attention_bias"),
        ({"vision_config": {**VISION, "pooling_kernel_size": 0}}, "pooling_kernel_size"),
        ({"vision_config": {**VISION, "position_embedding_size": 30}}, "position_embedding_size = 30 .* 36 patches"),
        ({"vision_config": {**VISION, "rope_parameters": {"rope_type": "yarn"}}}, "rope_type = 'yarn'"),
        ({"vision_config": {**VISION, "use_clipped_linears": "yes"}}, "use_clipped_linears"),
        ({"vision_soft_tokens_per_image": -1}, "vision_soft_tokens_per_image"),
        ({"text_config": {**GEMMA4_CONFIGS[LARGE]["text_config"], "use_bidirectional_attention": "all"}}, "bidirect"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", GEMMA4_CONFIGS[LARGE] | changes)
