"""Our Whisper equals transformers', however the tokens are fed and wherever its memory lies."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.device.mesh import DeviceMesh
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging, Regions
from service.kernels.reference import PagedReference
from service.models.config import HubConfig
from service.models.decoder import Decoder
from service.models.families.whisper import read_config
from service.models.interface import LayerGroupInputs
from service.models.speech import SpeechEncoding
from service.models.weight_spec import bare_name
from service.weights.assembly import assemble_weights
from service.weights.headers import check_tensors
from tests.parity.whisper_cases import CONFIG, NUM_POSITIONS, REFERENCE_PATH, features, tensors, token_ids
from tests.tolerances import SAME_MODEL_ATOL, SAME_TOKENS_OTHER_STEPS_ATOL

PAGE_SIZE = 4
NUM_MEMORY_PAGES = -(-NUM_POSITIONS // PAGE_SIZE)
LAYOUT = CacheLayout(num_pages=32, page_size=PAGE_SIZE)
# In no order, so that a page's number and its position differ; those of memory and of text lie among each other.
SHUFFLED = np.random.RandomState(3).permutation(32).astype(np.int32)
MEMORY_PAGES, TEXT_PAGES, OTHER_PAGES = SHUFFLED[:7], SHUFFLED[7:14], SHUFFLED[14:21]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    save_file(tensors(), folder / "model.safetensors")
    model = Decoder(read_config(HubConfig("test", CONFIG)), kernel=PagedReference())
    found = {bare_name(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    check_tensors("test", model.weight_specs(), {name: tensor.shape for name, tensor in found.items()})
    return model, assemble_weights(model.weight_specs(), found, mesh=DeviceMesh((jax.devices()[0],)))


@pytest.fixture(scope="module")
def reference():
    return np.load(REFERENCE_PATH)


def encode(model: Decoder, weights: dict[str, jax.Array], window: np.ndarray) -> jax.Array:
    assert model.config.speech_encoder is not None
    encoder = SpeechEncoding(model.config.speech_encoder, model.weight_specs(), model.dtype)
    hidden = encoder.begin(weights, jnp.asarray(window))
    for group in encoder.layer_groups:
        hidden = encoder.run_layer_group(group, [weights[name] for name in group.weights], hidden)
    return encoder.end(weights, hidden)


def paging(start: int, num_tokens: int, pages: np.ndarray) -> Paging:
    return Paging(jnp.array([start]), jnp.array([num_tokens]), jnp.asarray(pages[None]))


class Steps:
    """Steps of one sequence or of several, over caches that hold their memories."""

    def __init__(self, model: Decoder, weights: dict[str, jax.Array]) -> None:
        self._model, self._weights, self._groups = model, weights, model.layer_groups
        self._caches = [model.initial_cache(LAYOUT, group) for group in self._groups]

    def remember(self, output: jax.Array, pages: np.ndarray) -> None:
        written = paging(0, NUM_POSITIONS, pages)
        for index, group in enumerate(self._groups):
            own = [self._weights[name] for name in group.weights]
            self._caches[index] = self._model.remember(group, own, self._caches[index], output, written)

    def run(self, ids: np.ndarray, text: Paging, memory: Paging) -> np.ndarray:
        """Return the logits of every token, [seq, token, vocab]."""
        regions = (Regions.of_prompts(text), Regions.of_prompts(memory))
        logits, self._caches = self._step(self._weights, self._caches, jnp.asarray(ids).reshape(-1), *regions)
        return np.asarray(logits).reshape(*ids.shape, -1)

    @functools.cached_property
    def _step(self) -> Callable[..., Any]:
        model, groups = self._model, self._groups

        def step(weights: Any, caches: Any, ids: jax.Array, text: Regions, memory: Regions) -> Any:
            hidden, rotation = model.embed(weights, ids, text.positions(len(ids)))
            changed = []
            for group, cache in zip(groups, caches, strict=True):
                inputs = LayerGroupInputs(hidden, rotation, text, memory)
                own = [weights[name] for name in group.weights]
                hidden, written = model.run_layer_group(group, own, cache, inputs)
                changed.append(written)
            return model.logits(weights, hidden), changed

        return jax.jit(step)


def logits_by_chunk(model: Decoder, weights: dict[str, jax.Array], output: jax.Array, chunk: int) -> np.ndarray:
    steps, ids, rows = Steps(model, weights), token_ids(), []
    steps.remember(output, MEMORY_PAGES)
    for start in range(0, len(ids), chunk):
        part = ids[None, start : start + chunk]
        text, memory = paging(start, part.shape[1], TEXT_PAGES), paging(NUM_POSITIONS, 0, MEMORY_PAGES)
        rows.append(steps.run(part, text, memory)[0])
    return np.concatenate(rows)


def test_the_encoders_output_equals_transformers(loaded, reference):
    model, weights = loaded
    np.testing.assert_allclose(encode(model, weights, features()), reference["memory"], atol=SAME_MODEL_ATOL, rtol=0)


def test_logits_equal_transformers_however_the_tokens_are_fed(loaded, reference):
    model, weights = loaded
    output = encode(model, weights, features())
    whole = logits_by_chunk(model, weights, output, len(token_ids()))
    np.testing.assert_allclose(whole, reference["logits"], atol=SAME_MODEL_ATOL, rtol=0)
    for chunk in (7, 1):
        in_chunks = logits_by_chunk(model, weights, output, chunk)
        np.testing.assert_allclose(in_chunks, whole, atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)


def test_sequences_of_one_step_attend_each_to_its_own_memory(loaded, reference):
    model, weights = loaded
    other = encode(model, weights, features()[::-1])
    steps, ids = Steps(model, weights), token_ids()
    steps.remember(encode(model, weights, features()), MEMORY_PAGES)
    steps.remember(other, OTHER_PAGES)
    text = Paging(jnp.zeros(2, jnp.int32), jnp.full(2, 4), jnp.asarray(SHUFFLED[21:25].reshape(2, 2)))
    memory = Paging(
        jnp.full(2, NUM_POSITIONS),
        jnp.zeros(2, jnp.int32),
        jnp.asarray(np.stack([MEMORY_PAGES, OTHER_PAGES])),
    )
    both = steps.run(np.stack([ids[:4], ids[:4]]), text, memory)
    np.testing.assert_allclose(both[0], reference["logits"][:4], atol=SAME_MODEL_ATOL, rtol=0)
    alone = logits_by_chunk(model, weights, other, 4)[:4]
    np.testing.assert_allclose(both[1], alone, atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)
    assert np.abs(both[0] - both[1]).max() > 100 * SAME_MODEL_ATOL


def test_a_memory_of_nans_reaches_no_other_sequence(loaded, reference):
    model, weights = loaded
    steps, ids = Steps(model, weights), token_ids()
    steps.remember(jnp.full((NUM_POSITIONS, model.hidden_size), jnp.nan), MEMORY_PAGES)
    steps.remember(encode(model, weights, features()), MEMORY_PAGES)
    memory = paging(NUM_POSITIONS, 0, MEMORY_PAGES)
    logits = steps.run(ids[None], paging(0, len(ids), TEXT_PAGES), memory)[0]
    np.testing.assert_allclose(logits, reference["logits"], atol=SAME_MODEL_ATOL, rtol=0)
