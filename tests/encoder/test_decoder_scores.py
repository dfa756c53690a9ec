"""Rerankers without a head, of the kind of Qwen3-Reranker: a score by two tokens, and the prompt around a pair."""

import json

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

from service.errors import UnsupportedModel
from service.text.pair_template import QWEN3_RERANKER, encode_templated
from service.text.pairs import PairLimits
from service.text.tokenizer import Tokenizer
from tests.encoder import tiny
from tests.encoder.running import tiny_of
from tests.parity.encoder_cases import ENCODER_CASES, texts
from tests.parity.test_encoder_vectors import write_checkpoint
from tests.tolerances import SAME_MODEL_ATOL

SMALL = {"max_prefill_tokens": 64}
TOKENS = {"classifier_from_token": ["cat", "dog"]}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def case_of(name):
    return next(case for case in ENCODER_CASES if case.name == name)


def write(folder, name, **config):
    """Write the checkpoint of a case as one that generates or classifies; return the vectors of transformers."""
    case = case_of(name)
    write_checkpoint(folder, case)
    (folder / "config.json").write_text(json.dumps(case.hub_config | config))
    for file in ("modules.json", "1_Pooling/config.json"):
        (folder / file).unlink()
    stored = load_file(folder / "model.safetensors")
    named = {f"model.{key}": value for key, value in stored.items()}
    save_file(named, folder / "model.safetensors")
    return stored, np.load(case.reference_path)["vectors"]


@pytest.mark.slow
def test_a_score_is_the_probability_of_one_token_rather_than_another_by_tied_embeddings(tmp_path):
    stored, hidden = write(tmp_path, "qwen3", architectures=["Qwen3ForCausalLM"], tie_word_embeddings=True, **TOKENS)
    rows = stored["embed_tokens.weight"]
    difference = rows[tiny.VOCAB["dog"]] - rows[tiny.VOCAB["cat"]]
    model = tiny_of(tmp_path, **SMALL)
    assert model.spec.config.vector.is_score
    np.testing.assert_allclose(model.vectors(*texts()), sigmoid(hidden @ difference)[:, None], atol=SAME_MODEL_ATOL)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"classifier_from_token": ["no", "dog"]}, "'no', which is no token"),
        ({"classifier_from_token": ["dog"]}, "must name two tokens"),
        ({"model_type": "llama"} | TOKENS, "not for 'llama'"),
    ],
)
def test_other_tokens_and_families_are_refused_by_name(config, reason, tmp_path):
    write(tmp_path, "qwen3", **config)
    with pytest.raises(UnsupportedModel, match=reason):
        tiny_of(tmp_path, **SMALL)


def byte_tokenizer() -> Tokenizer:
    """A tokenizer with a token for each byte, which can return any text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend)


def prompts(pairs, **limits):
    made = byte_tokenizer()
    encoded = encode_templated(made, QWEN3_RERANKER, pairs, ["documents"] * len(pairs), PairLimits(**limits))
    assert all(pair.second_from == len(pair.token_ids) for pair in encoded)
    return [made.decode(pair.token_ids) for pair in encoded]


def test_texts_stand_in_the_prompt_that_the_model_was_trained_with():
    [whole] = prompts([("What?", "This.")])
    assert whole == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a '
        "web search query, retrieve relevant passages that answer the query\n<Query>: What?\n<Document>: This."
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_a_document_is_cut_and_the_prompt_is_not():
    [whole] = prompts([("What?", "This.")])
    [short] = prompts([("What?", "This.")], pair=len(whole) - 3)
    assert short == whole.replace("This.", "Th")
    assert prompts([("What?", "This."), ("What?", "T")], second=3) == [
        whole.replace("This.", "Thi"),
        whole.replace("This.", "T"),
    ]
