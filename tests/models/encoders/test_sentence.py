"""The files of sentence-transformers: what they mean, and what is refused by name."""

import pytest

from service.errors import UnsupportedModel
from service.models.description import Activation
from service.models.encoders.config import Pooling, VectorConfig
from service.models.encoders.sentence import LENGTHS, read_sentence_config, read_sentence_vector
from tests.encoder.tiny import DENSE, DENSE_CONFIG, MODULES

MEAN = {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 32}}
DROPOUT = {"idx": 2, "name": "2", "path": "2_Dropout", "type": "sentence_transformers.models.Dropout"}


def texts(files):
    return read_sentence_config("model", files)


def vector(files):
    return read_sentence_vector("model", files)


def with_module(kind, package="sentence_transformers.models", **files):
    module = {"idx": 1, "path": "1_X", "type": f"{package}.{kind}"}
    return {"modules.json": [MODULES[0], module], **files}


def with_pooling(*modules, files=None, **pooling):
    return {"modules.json": [*MODULES[:2], *modules], "1_Pooling/config.json": pooling, **(files or {})}


def test_without_files_vectors_are_means_of_any_length():
    assert vector({}) == VectorConfig((Pooling.MEAN,), (), is_normalized=False)
    assert texts({}).max_tokens is None


def test_modules_are_read_in_their_order_and_dropout_changes_nothing():
    files = {"modules.json": [*MODULES[:2], DROPOUT, DENSE, MODULES[2]], "2_Dense/config.json": DENSE_CONFIG, **MEAN}
    found = vector(files)
    assert (found.poolings, found.is_normalized, found.size(32)) == ((Pooling.MEAN,), True, 12)
    [dense] = found.dense
    assert (dense.tensor, dense.in_size, dense.out_size, dense.activation) == (
        "2_Dense/linear",
        32,
        12,
        Activation.TANH,
    )


@pytest.mark.parametrize(
    ("config", "poolings"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ["cls"]),
        ({"pooling_mode_max_tokens": True}, ["max"]),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ["mean_sqrt_len_tokens"]),
        ({"pooling_mode_weightedmean_tokens": True}, ["weightedmean"]),
        ({"pooling_mode_lasttoken": True}, ["lasttoken"]),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}, ["mean", "lasttoken"]),
        ({"word_embedding_dimension": 32, "pooling_mode_cls_token": False}, ["mean"]),
        ({"pooling_mode": "cls"}, ["cls"]),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, ["mean_sqrt_len_tokens"]),
        ({"pooling_mode": ["lasttoken", "cls"]}, ["lasttoken", "cls"]),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, ["cls"]),
    ],
)
def test_older_files_switch_poolings_on_and_newer_ones_name_them(config, poolings):
    found = vector({"modules.json": MODULES, "1_Pooling/config.json": config})
    assert [str(pooling) for pooling in found.poolings] == poolings
    assert found.size(32) == 32 * len(poolings)


def test_a_prompt_is_pooled_unless_the_file_says_otherwise():
    assert vector(with_pooling(pooling_mode="mean", include_prompt=True)).pools_prompts
    assert not vector(with_pooling(pooling_mode="mean", include_prompt=False)).pools_prompts


@pytest.mark.parametrize(
    "path", ["torch.nn.modules.activation.Tanh", "torch.nn.Tanh", "torch.nn.modules.linear.Identity", None]
)
def test_the_activation_of_a_dense_layer_is_a_class_of_torch(path):
    config = {"2_Dense/config.json": DENSE_CONFIG | {"activation_function": path}}
    [dense] = vector(with_pooling(DENSE, files=config, pooling_mode="cls")).dense
    assert dense.activation is (Activation.TANH if "Tanh" in str(path) else Activation.NONE)


@pytest.mark.parametrize("name", LENGTHS)
def test_the_length_is_in_a_file_that_may_be_named_after_the_family(name):
    assert texts({name: {"max_seq_length": 12, "do_lower_case": True}}).max_tokens == 12


def test_the_most_specific_length_counts():
    tokenizer = {"tokenizer_config.json": {"model_max_length": 512}}
    assert texts(tokenizer).max_tokens == 512
    assert texts(tokenizer | {LENGTHS[0]: {"max_seq_length": None}}).max_tokens == 512
    assert texts(tokenizer | {LENGTHS[0]: {"max_seq_length": 128}}).max_tokens == 128
    stated = {LENGTHS[0]: {"max_seq_length": 128, "processor_kwargs": {"model_max_length": 64}}}
    assert texts(tokenizer | stated).max_tokens == 64
    assert texts({"tokenizer_config.json": {"model_max_length": 10**30}}).max_tokens == 2**62


def test_texts_are_lowered_where_a_file_asks_for_it():
    assert texts({LENGTHS[0]: {"do_lower_case": True}}).lowers
    assert not texts({LENGTHS[0]: {"do_lower_case": False}}).lowers


def test_a_prompt_without_a_text_is_none():
    files = {"config_sentence_transformers.json": {"prompts": {"query": "q: ", "document": None}}}
    assert texts(files).prompts == {"query": "q: ", "document": ""}


ODD_DENSE = {"2_Dense/config.json": DENSE_CONFIG | {"activation_function": "x.Odd"}}
RESIDUAL = {"2_Dense/config.json": DENSE_CONFIG | {"use_residual": True}}
OF_TOKENS = {"2_Dense/config.json": DENSE_CONFIG | {"module_input_name": "token_embeddings"}}
NORMAL_TOKENS = {"2_Normalize/config.json": {"module_input_name": "token_embeddings"}}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (with_module("CNN"), "CNN"),
        (with_module("Dense"), "Dense"),
        (with_module("Pooling", "custom_code"), r"custom_code\.Pooling"),
        ({"modules.json": [{**MODULES[0], "path": "0_Transformer"}]}, "0_Transformer"),
        ({"modules.json": MODULES[:1]}, "no Pooling"),
        ({"modules.json": MODULES}, r"1_Pooling/config\.json is missing"),
        (with_pooling(pooling_mode_median_tokens=True), "median"),
        (with_pooling(pooling_mode=["cls", "median"]), "median"),
        (with_pooling(MODULES[2], DENSE, pooling_mode="cls"), "Dense"),
        (with_pooling(DENSE, files=ODD_DENSE, pooling_mode="cls"), r"x\.Odd"),
        (with_pooling(DENSE, files=RESIDUAL, pooling_mode="cls"), "use_residual"),
        (with_pooling(DENSE, files=OF_TOKENS, pooling_mode="cls"), "token_embeddings"),
        (with_pooling(MODULES[2], files=NORMAL_TOKENS, pooling_mode="cls"), "token_embeddings"),
        (with_pooling(DENSE, files={"2_Dense/config.json": {}}, pooling_mode="cls"), "in_features"),
    ],
)
def test_modules_that_are_not_served_are_refused_by_name(files, named):
    with pytest.raises(UnsupportedModel, match=named):
        vector(files)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"config_sentence_transformers.json": {"default_prompt_name": "query"}}, "query"),
        ({LENGTHS[0]: {"max_seq_length": "512"}}, r"max_seq_length is '512'"),
        ({LENGTHS[0]: {"max_seq_length": -1}}, r"max_seq_length is -1"),
        ({LENGTHS[0]: {"modality_config": {"text": {"method": "get_text_features"}}}}, "get_text_features"),
    ],
)
def test_options_of_texts_that_are_not_served_are_refused_by_name(files, named):
    with pytest.raises(UnsupportedModel, match=named):
        texts(files)
