"""Scores of rerankers equal those of an independent implementation."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.errors import UnsupportedModel
from service.text.pairs import PairLimits, encode_pairs
from service.text.tokenizer import Tokenizer
from tests.encoder import tiny
from tests.encoder.running import tiny_of
from tests.tolerances import SAME_MODEL_ATOL

SMALL = {"max_prefill_tokens": 64}
PAIRS = [("fast cat", "the cat ran"), ("fast cat", "a blue tree is on the mat"), ("dog", "dog")]
IDENTITY = "torch.nn.modules.linear.Identity"
XLM = {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaForSequenceClassification"],
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
# The family's own fields, the prefix of its encoder, the layers of its head, the position of the first token.
FAMILIES = {
    "bert": ({"architectures": ["BertForSequenceClassification"]}, "bert.", ("bert.pooler.dense", "classifier"), 0),
    "xlm-roberta": (XLM, "roberta.", ("classifier.dense", "classifier.out_proj"), 2),
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def encoded_pairs():
    return encode_pairs(Tokenizer(tiny.tokenizer()), PAIRS, ["documents"] * len(PAIRS), PairLimits())


def write_reranker(folder, family, **config):
    """Write a reranker with one label, and return its tensors without prefixes and the head's."""
    fields, prefix, (hidden, out), _ = FAMILIES[family]
    tensors = tiny.write_checkpoint(folder, pooling=None, id2label={"0": "LABEL_0"}, **fields | config)
    random, size = np.random.RandomState(5), tiny.CONFIG["hidden_size"]
    head = {f"{hidden}.weight": random.randn(size, size), f"{hidden}.bias": random.randn(size)}
    head |= {f"{out}.weight": random.randn(1, size), f"{out}.bias": random.randn(1)}
    head = {name: (tensor * 0.2).astype(np.float32) for name, tensor in head.items()}
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler.")}
    save_file({f"{prefix}{name}": tensor for name, tensor in kept.items()} | head, folder / "model.safetensors")
    return tensors, head


@pytest.mark.parametrize("activation", [None, IDENTITY])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_scores_equal_those_of_another_implementation(family, activation, tmp_path):
    config = {} if activation is None else {"sbert_ce_default_activation_function": activation}
    tensors, head = write_reranker(tmp_path, family, **config)
    _, _, (hidden, out), first_position = FAMILIES[family]
    expected = []
    for pair in encoded_pairs():
        second_from = pair.second_from if family == "bert" else None
        states = tiny.hidden_states(
            tensors, tiny.CONFIG, list(pair.token_ids), first_position=first_position, second_from=second_from
        )
        inner = np.tanh(head[f"{hidden}.weight"] @ states[0] + head[f"{hidden}.bias"])
        logit = head[f"{out}.weight"] @ inner + head[f"{out}.bias"]
        expected.append(sigmoid(logit) if activation is None else logit)
    found = tiny_of(tmp_path, **SMALL)
    assert found.spec.config.vector.is_score
    pairs = encoded_pairs()
    scores = found.vectors(
        *(list(pair.token_ids) for pair in pairs),
        second_from=None if family == "xlm-roberta" else [pair.second_from for pair in pairs],
    )
    np.testing.assert_allclose(scores, expected, atol=SAME_MODEL_ATOL)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, "2 labels"),
        ({"sbert_ce_default_activation_function": "x.Odd"}, "x.Odd"),
        ({"sentence_transformers": {"activation_fn": "x.Odd"}}, "x.Odd"),
    ],
)
def test_a_head_that_is_not_served_is_refused_by_name(config, named, tmp_path):
    tiny.write_checkpoint(tmp_path, pooling=None, **{**FAMILIES["bert"][0], "id2label": {"0": "a"}, **config})
    with pytest.raises(UnsupportedModel, match=named):
        tiny_of(tmp_path)


def test_a_reranker_without_its_head_is_refused(tmp_path):
    write_reranker(tmp_path, "bert")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(Exception, match=r"classifier\.weight"):
        tiny_of(tmp_path, **SMALL)
