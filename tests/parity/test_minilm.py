"""Vectors of all-MiniLM-L6-v2's real weights equal those of sentence-transformers."""

import numpy as np
import pytest

from service.text.load import load_tokenizer
from tests.encoder.running import Tiny, tiny_of
from tests.parity.sentences import REFERENCE, TEXTS, minilm
from tests.tolerances import SAME_MODEL_ATOL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return load_tokenizer(minilm()).encode_all(TEXTS, params=["input"] * len(TEXTS))


@pytest.fixture(scope="module")
def model() -> Tiny:
    return tiny_of(minilm())


def test_vectors_of_real_weights_equal_those_of_sentence_transformers(model, texts):
    found, expected = model.vectors(*texts), np.load(REFERENCE)["vectors"]
    np.testing.assert_allclose(found, expected, atol=SAME_MODEL_ATOL)
    cosines = (found * expected).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert cosines.min() >= 0.99999


def test_a_vector_of_real_weights_is_the_same_alone_and_in_a_batch(model, texts):
    alone = np.concatenate([model.vectors(text) for text in texts])
    np.testing.assert_allclose(model.vectors(*texts, *texts)[len(texts) :], alone, atol=1e-6)
