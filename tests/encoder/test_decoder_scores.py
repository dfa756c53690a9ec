"""Rerankers whose hidden states transformers has computed: Qwen3-Reranker by its tokens, ModernBERT by its head."""

import json
import math

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
from tests.parity.encoder_cases import ENCODER_CASES, tensor, texts
from tests.parity.test_encoder_vectors import write_checkpoint
from tests.tolerances import SAME_MODEL_ATOL

SMALL = {"max_prefill_tokens": 64}
TOKENS = {"classifier_from_token": ["cat", "dog"]}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def case_of(name):
    return next(case for case in ENCODER_CASES if case.name == name)


def write(folder, name, tensors=None, **config):
    """Write the checkpoint of a case as one that generates or classifies; return the vectors of transformers."""
    case = case_of(name)
    write_checkpoint(folder, case)
    (folder / "config.json").write_text(json.dumps(case.hub_config | config))
    for file in ("modules.json", "1_Pooling/config.json"):
        (folder / file).unlink()
    stored = load_file(folder / "model.safetensors")
    named = {f"model.{key}": value for key, value in stored.items()} | (tensors or {})
    save_file(named, folder / "model.safetensors")
    return stored, np.load(case.reference_path)["vectors"]


@pytest.mark.slow
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_score_is_the_probability_of_one_token_rather_than_another(is_tied, tmp_path):
    case = case_of("qwen3")
    unembed = {} if is_tied else {"lm_head.weight": tensor("lm_head.weight", (case.hub_config["vocab_size"], 32))}
    stored, hidden = write(
        tmp_path, "qwen3", unembed, architectures=["Qwen3ForCausalLM"], tie_word_embeddings=is_tied, **TOKENS
    )
    rows = stored["embed_tokens.weight"] if is_tied else unembed["lm_head.weight"]
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


@pytest.mark.slow
def test_a_modernbert_reranker_has_a_norm_in_its_head(tmp_path):
    head = {"head.dense.weight": tensor("head.dense.weight", (32, 32)), "head.norm.weight": tensor("head.norm", (32,))}
    head |= {"classifier.weight": tensor("classifier.weight", (1, 32)), "classifier.bias": np.ones(1, np.float32)}
    pooling = case_of("modernbert").pooling.split("_")[0]
    config = {"architectures": ["ModernBertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    _, pooled = write(tmp_path, "modernbert", head, classifier_pooling=pooling, **config)
    made = pooled @ head["head.dense.weight"].T
    made = made * 0.5 * (1 + np.vectorize(math.erf)(made / math.sqrt(2)))
    made = made - made.mean(-1, keepdims=True)
    made = made / np.sqrt(np.square(made).mean(-1, keepdims=True) + 1e-5) * head["head.norm.weight"]
    expected = sigmoid(made @ head["classifier.weight"].T + 1)
    np.testing.assert_allclose(tiny_of(tmp_path, **SMALL).vectors(*texts()), expected, atol=SAME_MODEL_ATOL)


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
