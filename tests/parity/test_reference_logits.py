"""Our logits equal transformers' for every family and variant, however the tokens are fed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.device.mesh import DeviceMesh
from service.kernels.attention import AttentionKernel
from service.kernels.blocks import BlockAttention
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.description import GatedDelta
from service.models.registry import read_config
from service.models.weight_spec import bare_name
from service.weights.assembly import assemble_weights
from service.weights.headers import check_tensors
from tests.models.whole_step import WholeStep
from tests.parity.cases import CASES, Case
from tests.parity.family_cases import FAMILY_CASES, FamilyCase
from tests.tolerances import SAME_MODEL_ATOL, SAME_RECURRENCE_OTHER_STEPS_ATOL, SAME_TOKENS_OTHER_STEPS_ATOL

PAGE_SIZE = 4
# In no order and not from the first on, so that a page's number and its position differ.
PAGES = np.random.RandomState(3).permutation(16)[:12].astype(np.int32)
LAYOUT = CacheLayout(num_pages=16, page_size=PAGE_SIZE, num_states=3)


def bare_tensors(model_type: str, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return tensors as the loader names them: GPT-2's without the prefix of a model with a head."""
    return {bare_name(name) if model_type == "gpt2" else name: tensor for name, tensor in tensors.items()}


def load(case: Case, kernel: AttentionKernel, tmp_path) -> tuple[Decoder, dict[str, jax.Array]]:
    save_file(case.tensors(), tmp_path / "model.safetensors")
    max_model_len = case.max_model_len if isinstance(case, FamilyCase) else None
    model = Decoder(read_config("test", json.loads(json.dumps(case.hub_config)), max_model_len), kernel=kernel)
    tensors = bare_tensors(case.model_type, load_file(tmp_path / "model.safetensors"))
    check_tensors("test", model.weight_specs(), {name: tensor.shape for name, tensor in tensors.items()})
    return model, assemble_weights(
        model.weight_specs(),
        tensors,
        mesh=DeviceMesh((jax.devices()[0],)),
    )


def logits_by_chunk(model: Decoder, weights: dict[str, jax.Array], token_ids: np.ndarray, chunk: int) -> np.ndarray:
    """Feed the tokens in chunks through the pages and return the logits of every position."""
    step = WholeStep(model)
    caches, rows = step.empty_caches(LAYOUT), []
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        padded = np.zeros((1, chunk), np.int32)
        padded[0, : len(part)] = part
        paging = Paging(jnp.array([start]), jnp.array([len(part)]), jnp.asarray(PAGES[None]))
        logits, caches = step(weights, caches, jnp.asarray(padded), paging)
        rows.append(np.asarray(logits)[0, : len(part)])
    return np.concatenate(rows)


ALL_CASES = [*CASES, *FAMILY_CASES]
# One for each way in which attention differs: copies of heads, groups, windows, rotations, q/k norms, caps, sinks.
OF_ATTENTION = {
    "llama_one_kv_head", "mistral_window", "llama_yarn", "qwen3", "gemma2", "gemma3", "phi4_mini", "gpt_oss",
    "snowball", "gemma4", "gemma4_shared",
}  # fmt: skip
# Of what another case of `make test` holds, too.
OF_GRID = {"exaone4_full", "olmo_hybrid_rope", "falcon_h1_no_norm", "lfm3_plain", "gemma4_values", "glm", "ministral"}


def in_one_chunk(case: Case, model: Decoder, weights: dict[str, jax.Array]) -> np.ndarray:
    """Return the logits of a whole prompt, which are transformers'."""
    whole = logits_by_chunk(model, weights, case.token_ids, len(case.token_ids))
    np.testing.assert_allclose(whole, np.load(case.reference_path)["logits"], atol=SAME_MODEL_ATOL, rtol=0)
    return whole


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.grid if case.name in OF_GRID else ())
        for case in ALL_CASES
        if case.name not in OF_ATTENTION
    ],
    ids=lambda case: case.name,
)
def test_logits_equal_transformers(case, tmp_path):
    in_one_chunk(case, *load(case, PagedReference(), tmp_path))


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in OF_ATTENTION else pytest.mark.grid) for case in ALL_CASES],
    ids=lambda case: case.name,
)
def test_logits_equal_transformers_and_depend_neither_on_the_chunks_nor_on_the_kernel(case, tmp_path):
    model, weights = load(case, PagedReference(), tmp_path)
    whole = in_one_chunk(case, model, weights)

    by_blocks = Decoder(model.config, kernel=BlockAttention())
    has_matrices = any(isinstance(layer.state, GatedDelta) for layer in model.config.layers)
    for chunk in (7, 1):
        in_chunks = logits_by_chunk(by_blocks, weights, case.token_ids, chunk)
        atol = SAME_RECURRENCE_OTHER_STEPS_ATOL if has_matrices else SAME_TOKENS_OTHER_STEPS_ATOL
        np.testing.assert_allclose(in_chunks, whole, atol=atol, rtol=0)


def test_both_spellings_of_the_rope_configuration_are_one():
    case = next(c for c in CASES if c.name == "llama_llama3")
    parameters = dict(case.hub_config["rope_parameters"])
    theta = parameters.pop("rope_theta")
    legacy = {k: v for k, v in case.hub_config.items() if k != "rope_parameters"}
    legacy |= {"rope_theta": theta, "rope_scaling": parameters}
    assert read_config("test", legacy) == read_config("test", case.hub_config)
