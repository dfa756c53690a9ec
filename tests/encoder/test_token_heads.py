"""The outputs of tokens equal those of an independent implementation: bge-m3's heads, and hidden states without one."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from service.models.encoders.token_heads import read_token_heads
from tests.encoder import tiny
from tests.encoder.running import tiny_of
from tests.parity.encoder_cases import ENCODER_CASES, texts
from tests.parity.test_encoder_vectors import write_checkpoint
from tests.tolerances import SAME_MODEL_ATOL
from tests.weights.pickled import written

SMALL = {"max_prefill_tokens": 64}
XLM = {
    "architectures": ["XLMRobertaModel"],
    "model_type": "xlm-roberta",
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": tiny.CLS,
    "eos_token_id": tiny.SEP,
}
TEXTS = [[tiny.CLS, 4 + i % 16, *range(4, 4 + i), tiny.SEP] for i in (0, 3, 9)]


def heads():
    """Return the tensors of both heads, by layer."""
    random, size = np.random.RandomState(3), tiny.CONFIG["hidden_size"]
    rows = {"sparse_linear": 1, "colbert_linear": size}
    return {
        layer: {"weight": random.randn(num, size).astype(np.float32), "bias": random.randn(num).astype(np.float32)}
        for layer, num in rows.items()
    }


@pytest.fixture(scope="module")
def bge_m3(tmp_path_factory):
    """A checkpoint whose heads lie beside it, one in each format: its tensors, and a runner."""
    folder = tmp_path_factory.mktemp("m3")
    tensors = tiny.write_checkpoint(folder, pooling="cls_token", **XLM)
    pickle, storages = written.state(heads()["sparse_linear"])
    (folder / "sparse_linear.pt").write_bytes(written.archive(written.pickled(pickle), storages))
    save_file(heads()["colbert_linear"], folder / "colbert_linear.safetensors")
    return tensors, tiny_of(folder, **SMALL)


def expected_states(tensors):
    return [tiny.hidden_states(tensors, tiny.CONFIG, text, first_position=2) for text in TEXTS]


def test_lexical_weights_leave_out_the_special_tokens_at_the_ends(bge_m3):
    tensors, model = bge_m3
    outputs, layer = model.spec.token_outputs(model.weights), heads()["sparse_linear"]
    assert outputs.has_weights
    for states, text, full in zip(model.hidden_states(*TEXTS), TEXTS, expected_states(tensors), strict=True):
        expected = np.maximum(full[1:-1] @ layer["weight"].T + layer["bias"], 0)[:, 0]
        np.testing.assert_allclose(outputs.weights(states, text), expected, atol=SAME_MODEL_ATOL)
    cut = outputs.weights(model.hidden_states(TEXTS[1][:3])[0], TEXTS[1][:3])
    assert len(cut) == 2, "a text that is cut has no token at its end to leave out"


def test_vectors_of_tokens_leave_out_the_first_alone(bge_m3):
    tensors, model = bge_m3
    outputs, layer = model.spec.token_outputs(model.weights), heads()["colbert_linear"]
    for states, text, full in zip(model.hidden_states(*TEXTS), TEXTS, expected_states(tensors), strict=True):
        made = full[1:] @ layer["weight"].T + layer["bias"]
        expected = made / np.linalg.norm(made, axis=1, keepdims=True)
        np.testing.assert_allclose(outputs.vectors(states, text), expected, atol=SAME_MODEL_ATOL)


def test_heads_change_no_vector_of_a_text(bge_m3):
    tensors, model = bge_m3
    expected = [tiny.unit(states[0]) for states in expected_states(tensors)]
    np.testing.assert_allclose(model.vectors(*TEXTS), expected, atol=SAME_MODEL_ATOL)


def test_a_head_is_there_if_its_file_is():
    assert read_token_heads(["model.safetensors", "colbert_linear.pt"], {}).names == ("colbert_linear",)
    assert read_token_heads(["model.safetensors", "old_sparse_linear.pt"], {}).names == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modernbert", "gemma3"])
def test_the_vectors_of_tokens_without_a_head_are_those_that_transformers_pools(name, tmp_path):
    case = next(case for case in ENCODER_CASES if case.name == name)
    write_checkpoint(tmp_path, case)
    model = tiny_of(tmp_path, **SMALL)
    outputs, expected = model.spec.token_outputs(model.weights), np.load(case.reference_path)["vectors"]
    assert outputs is not None
    pooling = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    [pooled] = [mode.removeprefix("pooling_mode_") for mode in pooling]
    for states, text, vector in zip(model.hidden_states(*texts()), texts(), expected, strict=True):
        assert not outputs.has_weights
        found = outputs.vectors(states, text)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
        if len(text) == 1 or pooled == "cls_token":
            np.testing.assert_allclose(found[0], tiny.unit(vector), atol=SAME_MODEL_ATOL)
