"""Poolings of sentence-transformers: several at once, and without the tokens of a prompt."""

import numpy as np
import pytest

from service.api.schema.embeddings import EmbeddingsRequest
from service.api.served import VectorFacts
from service.api.vectors.texts import prompt_tokens
from service.encoder.cache import keys_of
from service.encoder.request import EncodeRequest
from service.text.lowercase import lowercased
from service.text.tokenizer import Tokenizer
from tests.encoder import tiny
from tests.encoder.running import tiny_of
from tests.tolerances import SAME_MODEL_ATOL

SMALL = {"max_prefill_tokens": 16, "max_model_len": 16}
TEXTS = [[tiny.CLS, 4 + i % 16, *range(4, 4 + i), tiny.SEP] for i in (3, 0, 9, 1)]
POOLINGS = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
NEWER = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
ALL = {f"pooling_mode_{name}": True for name in POOLINGS}


def joined(hidden: np.ndarray) -> np.ndarray:
    return np.concatenate([tiny.pooled(hidden, pooling) for pooling in POOLINGS])


def test_vectors_of_several_poolings_are_joined_in_the_order_of_the_library(tmp_path):
    tensors = tiny.write_checkpoint(tmp_path, files={"1_Pooling/config.json": ALL, "modules.json": tiny.MODULES[:2]})
    model = tiny_of(tmp_path, **SMALL)
    expected = np.array([joined(tiny.hidden_states(tensors, tiny.CONFIG, text)) for text in TEXTS])
    found = model.vectors(*TEXTS)
    np.testing.assert_allclose(found, expected, atol=SAME_MODEL_ATOL)
    assert model.spec.config.vector_size == found.shape[1] == 6 * 32


def test_tokens_of_a_prompt_are_seen_but_not_pooled(tmp_path):
    config = {"pooling_mode": NEWER, "include_prompt": False}
    tensors = tiny.write_checkpoint(tmp_path, files={"1_Pooling/config.json": config, "modules.json": tiny.MODULES[:2]})
    model, prompt = tiny_of(tmp_path, **SMALL), [tiny.CLS, 8, 9]
    texts = [[*prompt, *text[1:]] for text in TEXTS]
    states = [tiny.hidden_states(tensors, tiny.CONFIG, text) for text in texts]
    expected = [joined(hidden[len(prompt) :]) for hidden in states]
    # Positions, which weigh the tokens, count from the text's begin.
    for row, hidden in zip(expected, states, strict=True):
        weights = np.arange(len(hidden)) + 1
        row[4 * 32 : 5 * 32] = np.average(hidden[len(prompt) :], axis=0, weights=weights[len(prompt) :])
    np.testing.assert_allclose(model.vectors(*texts, prompt_tokens=3), expected, atol=SAME_MODEL_ATOL)
    assert np.isfinite(model.vectors([tiny.CLS, 8, 9], prompt_tokens=3)).all()


def test_vectors_with_and_without_the_prompt_s_tokens_are_never_taken_for_one_another():
    texts = ((1, 2, 3),)
    assert keys_of(EncodeRequest("a", texts), b"") != keys_of(EncodeRequest("a", texts, prompt_tokens=2), b"")


@pytest.mark.parametrize(("pools", "count"), [(True, 0), (False, 3)])
def test_a_prompt_is_as_long_as_its_tokens_without_the_one_that_ends_a_text(pools, count):
    facts = VectorFacts(
        size=32,
        is_normalized=True,
        matryoshka_sizes=None,
        prompts={"query": "query: "},
        default_prompt=None,
        pools_prompts=pools,
    )
    body = {"model": "m", "input": ["cat"], "prompt_name": "query"}
    tokenizer = Tokenizer(tiny.tokenizer())
    assert prompt_tokens(EmbeddingsRequest.model_validate(body), tokenizer, facts) == count
    plain = EmbeddingsRequest.model_validate(body | {"prompt_name": None})
    assert prompt_tokens(plain, tokenizer, facts) == 0


def test_a_lowered_tokenizer_keeps_special_tokens_and_leaves_the_original_alone():
    backend = tiny.tokenizer()
    backend.normalizer = None
    tokenizer = Tokenizer(backend)
    text = "CAT [SEP] Dog"
    [ids] = lowercased(tokenizer).encode_all([text], params=["input"])
    words = [tiny.CLS, tiny.VOCAB["cat"], tiny.SEP, tiny.VOCAB["dog"], tiny.SEP]
    assert ids == words
    [before] = tokenizer.encode_all([text], params=["input"])
    assert before == [tiny.CLS, tiny.VOCAB["[UNK]"], tiny.SEP, tiny.VOCAB["[UNK]"], tiny.SEP]
