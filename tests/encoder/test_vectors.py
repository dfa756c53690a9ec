"""Vectors equal those of an independent implementation, alone and in any batch."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.encoder import tiny
from tests.encoder.running import tiny_of
from tests.tolerances import SAME_MODEL_ATOL

SMALL = {"max_prefill_tokens": 64}
# A text's vector alone and in a batch: the same sums in another order, elements below 1.
SAME_VECTOR_ATOL = 1e-6

TEXTS = [[tiny.CLS, 4 + i % 16, *range(4, 4 + i), tiny.SEP] for i in (0, 3, 9, 1, 14, 6, 2)]


@pytest.fixture(scope="module")
def mean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mean")
    return tiny_of(folder, **SMALL) if tiny.write_checkpoint(folder) else None


@pytest.mark.parametrize("pooling", ["cls_token", "mean_tokens", "max_tokens", "lasttoken"])
def test_vectors_equal_those_of_another_implementation(pooling, tmp_path):
    tensors = tiny.write_checkpoint(tmp_path, pooling=pooling)
    expected = [tiny.unit(tiny.pooled(tiny.hidden_states(tensors, tiny.CONFIG, text), pooling)) for text in TEXTS]
    np.testing.assert_allclose(tiny_of(tmp_path, **SMALL).vectors(*TEXTS), expected, atol=SAME_MODEL_ATOL)


def test_positions_of_xlm_roberta_begin_after_the_padding_token(tmp_path):
    changes = {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "type_vocab_size": 1}
    tensors = tiny.write_checkpoint(tmp_path, pad_token_id=1, **changes)
    states = [tiny.hidden_states(tensors, tiny.CONFIG, text, first_position=2) for text in TEXTS]
    found = tiny_of(tmp_path, **SMALL)
    assert found.spec.shapes.max_model_len == tiny.CONFIG["max_position_embeddings"] - 2
    expected = [tiny.unit(hidden.mean(0)) for hidden in states]
    np.testing.assert_allclose(found.vectors(*TEXTS), expected, atol=SAME_MODEL_ATOL)


def test_without_the_files_of_sentence_transformers_a_vector_is_the_mean(tmp_path):
    tensors = tiny.write_checkpoint(tmp_path, pooling=None)
    expected = [tiny.hidden_states(tensors, tiny.CONFIG, text).mean(0) for text in TEXTS]
    np.testing.assert_allclose(tiny_of(tmp_path, **SMALL).vectors(*TEXTS), expected, atol=SAME_MODEL_ATOL)


def test_a_dense_module_comes_after_the_pooling_from_a_file_of_its_own(tmp_path):
    files = {"modules.json": [*tiny.MODULES[:2], tiny.DENSE], "2_Dense/config.json": tiny.DENSE_CONFIG}
    tensors = tiny.write_checkpoint(tmp_path, files=files)
    dense = tiny.write_dense(tmp_path)
    means = np.array([tiny.hidden_states(tensors, tiny.CONFIG, text).mean(0) for text in TEXTS])
    expected = np.tanh(means @ dense["linear.weight"].T + dense["linear.bias"])
    np.testing.assert_allclose(tiny_of(tmp_path, **SMALL).vectors(*TEXTS), expected, atol=SAME_MODEL_ATOL)


def test_a_checkpoint_with_a_head_of_pretraining_names_its_tensors_after_the_family(tmp_path):
    tensors = tiny.write_checkpoint(tmp_path)
    before = tiny_of(tmp_path, **SMALL).vectors(*TEXTS)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    save_file({f"bert.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(tiny_of(tmp_path, **SMALL).vectors(*TEXTS), before)


def test_a_vector_is_the_same_alone_and_in_any_batch(mean):
    alone = np.concatenate([mean.vectors(text) for text in TEXTS])
    np.testing.assert_allclose(mean.vectors(*TEXTS), alone, atol=SAME_VECTOR_ATOL)
    np.testing.assert_allclose(mean.vectors(*reversed(TEXTS))[::-1], alone, atol=SAME_VECTOR_ATOL)
    np.testing.assert_allclose(mean.vectors(*TEXTS, *TEXTS)[len(TEXTS) :], alone, atol=SAME_VECTOR_ATOL)


@pytest.mark.parametrize("max_step", [16, pytest.param(512, marks=pytest.mark.slow)])
def test_a_text_as_long_as_the_model_takes_has_a_step_of_its_own(max_step, tmp_path):
    longest = 2 * max_step + 3
    tensors = tiny.write_checkpoint(tmp_path, max_position_embeddings=longest)
    text = [tiny.CLS, *(4 + i % 16 for i in range(longest - 2)), tiny.SEP]
    config = tiny.CONFIG | {"max_position_embeddings": longest}
    expected = tiny.unit(tiny.hidden_states(tensors, config, text).mean(0))
    found = tiny_of(tmp_path, max_prefill_tokens=max_step).vectors(text, [tiny.CLS, 5, tiny.SEP])
    np.testing.assert_allclose(found[0], expected, atol=SAME_MODEL_ATOL)
    short = tiny.unit(tiny.hidden_states(tensors, config, [tiny.CLS, 5, tiny.SEP]).mean(0))
    np.testing.assert_allclose(found[1], short, atol=SAME_MODEL_ATOL)


@pytest.mark.parametrize("pooling", ["cls_token", "mean_tokens", "max_tokens"])
def test_a_nan_stays_in_its_own_text(pooling, tmp_path):
    tiny.write_checkpoint(tmp_path, pooling=pooling)
    broken = 7
    tensors = load_file(tmp_path / "model.safetensors")
    sound = tiny_of(tmp_path, **SMALL)
    tensors["embeddings.word_embeddings.weight"][broken] = np.nan
    save_file(tensors, tmp_path / "model.safetensors")
    texts = [[tiny.CLS, 4, 5, tiny.SEP], [tiny.CLS, broken, tiny.SEP], [tiny.CLS, 6, tiny.SEP]]
    found = tiny_of(tmp_path, **SMALL).vectors(*texts)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], sound.vectors(*texts)[[0, 2]])


def test_dimensions_and_lengths_come_from_the_checkpoint(tmp_path):
    files = {
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "query: "}, "default_prompt_name": None},
    }
    tiny.write_checkpoint(tmp_path, files=files, matryoshka_dimensions=[8, 16])
    spec = tiny_of(tmp_path, **SMALL).spec
    assert (spec.shapes.max_model_len, spec.shapes.buckets) == (24, (16, 32, 64))
    assert (spec.sentence.prompts, spec.sentence.default_prompt) == ({"query": "query: "}, None)
    assert (spec.config.vector_size, spec.matryoshka_sizes) == (32, (8, 16))
    assert dataclasses.replace(spec.shapes, max_model_len=100).buckets == (16, 32, 64, 100)
