"""A Gemma 3 that sees equals transformers': its rows, and texts with pictures in every cut that leaves them whole."""

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
from service.kernels.blocks import BlockAttention
from service.kernels.cache_layout import CacheLayout
from service.kernels.native_pages import NativePagedAttention
from service.kernels.paging import Paging
from service.kernels.products.linear import Products
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from tests.kernels.emulated import TRITON
from tests.models.whole_step import WholeStep
from tests.parity.family_cases import FAMILY_CASES
from tests.parity.vision_cases import (
    GEMMA_CONFIG,
    GEMMA_REFERENCE_PATH,
    GEMMA_ROWS,
    IMAGE_TOKEN,
    gemma_pictures,
    gemma_tensors,
    gemma_token_ids,
)
from tests.served import DEMO
from tests.tolerances import SAME_MODEL_ATOL, SAME_TOKENS_OTHER_STEPS_ATOL

PAGE_SIZE, WIDTH = 4, 64  # of every chunk, so that all share what is compiled
PAGES = np.random.RandomState(3).permutation(24).astype(np.int32)
LAYOUT = CacheLayout(num_pages=24, page_size=PAGE_SIZE)
KERNELS = {"reference": PagedReference(), "blocks": BlockAttention(), "native": NativePagedAttention(), "gpu": TRITON}


def as_on_the_hub(name: str) -> str:
    """Return the name of a tensor in the files of the models' authors."""
    bare = name.removeprefix("model.").replace("language_model.", "language_model.model.", 1)
    return bare.replace("vision_tower.", "vision_tower.vision_model.", 1)


def as_saved_by_transformers_5(name: str) -> str:
    return name.removeprefix("model.").replace("language_model.", "language_model.model.", 1)


LAYOUTS = {"memory": str, "hub": as_on_the_hub, "transformers 5": as_saved_by_transformers_5}


def load(folder: Path, names=str, *, extra=()) -> tuple[Decoder, dict[str, jax.Array]]:
    folder.mkdir(exist_ok=True)
    shutil.copy(DEMO / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(GEMMA_CONFIG))
    tensors = {names(name): tensor for name, tensor in gemma_tensors().items()}
    save_file(tensors | dict.fromkeys(extra, np.zeros(3, np.float32)), folder / "model.safetensors")
    located = locate(str(folder), LocalSource)
    model = Decoder(read_config("m", located.hub_config))
    limits = LoadLimits(None, Progress(), 1 << 20)
    mesh = DeviceMesh((jax.devices()[0],))
    return model, load_checkpoint(located, model.weight_specs(), mesh=mesh, limits=limits).weights


@pytest.fixture(scope="module")
def gemma(tmp_path_factory) -> tuple[Decoder, dict[str, jax.Array]]:
    return load(tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def reference(gemma) -> tuple[WholeStep, dict[str, jax.Array]]:
    model, weights = gemma
    return WholeStep(replace(model, kernel=PagedReference())), weights


@pytest.fixture(scope="module")
def rows(gemma) -> np.ndarray:
    """Return the rows of every picture, [picture, row, hidden]."""
    return np.stack([rows_of(*gemma, picture) for picture in gemma_pictures()])


def rows_of(model: Decoder, weights: dict[str, jax.Array], picture: np.ndarray) -> jax.Array:
    encoder = model.encoder

    @jax.jit
    def encode(weights, picture):
        hidden = encoder.begin(weights, picture)
        for group in encoder.layer_groups:
            hidden = encoder.run_layer_group(group, [weights[name] for name in group.weights], hidden)
        return encoder.end(weights, hidden)

    return encode(weights, picture)


def test_the_rows_of_a_picture_equal_transformers(rows):
    with np.load(GEMMA_REFERENCE_PATH) as reference:
        np.testing.assert_allclose(rows, reference["rows"], atol=SAME_MODEL_ATOL, rtol=0)


@pytest.mark.parametrize("names", [pytest.param(names, id=name) for name, names in LAYOUTS.items() if name != "memory"])
def test_files_of_every_age_have_the_same_weights(gemma, names, tmp_path):
    _, expected = gemma
    _, weights = load(tmp_path / "model", names)
    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_tensor_that_is_not_the_models_is_named(tmp_path):
    with pytest.raises(MalformedCheckpoint, match=r"vision_tower\.encoder\.other"):
        load(tmp_path / "model", extra=["vision_tower.encoder.other"])


class Text:
    """A text with pictures, and where it may be cut."""

    def __init__(self, num_pictures: int, rows: np.ndarray) -> None:
        self.ids = gemma_token_ids(num_pictures)
        self.is_row = self.ids == IMAGE_TOKEN
        self.seen = np.full((len(self.ids), rows.shape[-1]), np.nan, np.float32)
        self.seen[self.is_row] = rows[:num_pictures].reshape(-1, rows.shape[-1])
        starts = np.flatnonzero(self.is_row)[::GEMMA_ROWS]
        self.ahead = np.zeros(len(self.ids), np.int32)
        for start in starts:
            self.ahead[start : start + GEMMA_ROWS] = np.arange(GEMMA_ROWS)[::-1]
        inside = {start + number for start in starts for number in range(1, GEMMA_ROWS)}
        self.cuts = [cut for cut in range(1, len(self.ids)) if cut not in inside]

    def logits(self, step, weights, ends, first=0, caches=None):
        """Return the logits of each position from `first` on, computed in chunks that end at `ends`, and the caches."""
        found = []
        caches = step.empty_caches(LAYOUT) if caches is None else caches
        for start, end in zip([first, *ends], ends, strict=False):
            ids, ahead, seen = (self._padded(part[start:end]) for part in (self.ids, self.ahead, self.seen))
            paging = Paging(jnp.array([start]), jnp.array([end - start]), jnp.asarray(PAGES[None]), ahead)
            logits, caches = step(weights, caches, ids, paging, seen=seen)
            found.append(np.asarray(logits)[0, : end - start])
        return np.concatenate(found), caches

    @staticmethod
    def _padded(part: np.ndarray) -> jax.Array:
        return jnp.asarray(np.pad(part, ((0, WIDTH - len(part)), *((0, 0),) * (part.ndim - 1)))[None])


@pytest.mark.parametrize("num_pictures", range(5))
def test_logits_of_texts_with_pictures_equal_transformers(reference, rows, num_pictures):
    step, weights = reference
    text = Text(num_pictures, rows)
    found, _ = text.logits(step, weights, [len(text.ids)])
    with np.load(GEMMA_REFERENCE_PATH) as kept:
        np.testing.assert_allclose(found, kept[f"logits{num_pictures}"], atol=SAME_MODEL_ATOL, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_logits_are_the_same_with_every_kernel_in_every_cut_that_leaves_pictures_whole(gemma, reference, rows, kernel):
    if kernel == "native" and not native_code().has_products:
        pytest.skip("no native code for this processor")
    (model, weights), text = gemma, Text(2, rows)
    expected, _ = text.logits(*reference, [len(text.ids)])
    own = WholeStep(replace(model, kernel=KERNELS[kernel], products=Products(native=native_code())))
    cuts = text.cuts if kernel == "native" else text.cuts[::4]  # each, or several at once
    for ends in (*([cut, len(text.ids)] for cut in cuts), [*text.cuts[::2], len(text.ids)]):
        found, _ = text.logits(own, weights, ends)
        np.testing.assert_allclose(found, expected, atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)


def test_the_rest_of_a_picture_may_follow_pages_that_hold_its_beginning(reference, rows):
    text = Text(2, rows)
    expected, caches = text.logits(*reference, [len(text.ids)])
    for first in range(PAGE_SIZE, len(text.ids), PAGE_SIZE):
        found, _ = text.logits(*reference, [len(text.ids)], first, caches)
        np.testing.assert_allclose(found, expected[first:], atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)


def test_a_text_model_under_text_config_has_the_same_layers():
    case = next(case for case in FAMILY_CASES if case.name == "gemma3")
    text = read_config("m", case.hub_config)
    both = read_config("m", GEMMA_CONFIG | {"text_config": case.hub_config | {"sliding_window": GEMMA_ROWS}})
    attentions = [replace(layer.attention, window=None) for layer in both.layers]
    assert attentions == [replace(layer.attention, window=None) for layer in text.layers]
    assert (both.hidden_size, both.embed_multiplier) == (text.hidden_size, text.embed_multiplier)
    assert read_config("m", GEMMA_CONFIG | {"text_config": {}}).heads.head_dim == 256


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mm_tokens_per_image": 8}, "mm_tokens_per_image = 8 is not the square of a divisor of the 6 patches"),
        ({"mm_tokens_per_image": 16}, "mm_tokens_per_image = 16 is not the square"),
        ({"vision_config": "siglip"}, "vision_config is str"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "model_type = 'clip_vision_model'"),
        ({"text_config": {"model_type": "gemma2"}}, "model_type = 'gemma2'"),
        (
            {"text_config": {**GEMMA_CONFIG["text_config"], "sliding_window": 8}},
            "sliding_window = 8 is less",
        ),
        ({"text_config": {**GEMMA_CONFIG["text_config"], "final_logit_softcapping": 30.0}}, "final_logit_softcapping"),
        ({"text_config": {**GEMMA_CONFIG["text_config"], "use_bidirectional_attention": True}}, "bidirectional"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", GEMMA_CONFIG | changes)
