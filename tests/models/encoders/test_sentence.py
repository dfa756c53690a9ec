"""The files of sentence-transformers: what they mean, and what is refused by name."""

import pytest

from service.errors import UnsupportedModel
from service.models.description import Activation
from service.models.encoders.config import Pooling, VectorConfig
from service.models.encoders.sentence import read_sentence_config
from tests.encoder.tiny import DENSE, DENSE_CONFIG, MODULES

MEAN = {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 32}}


def read(files):
    return read_sentence_config("model", files)


def with_module(kind, **files):
    module = {"idx": 1, "path": "1_X", "type": f"sentence_transformers.models.{kind}"}
    return {"modules.json": [MODULES[0], module], **files}


def test_without_files_vectors_are_means_of_any_length():
    assert read({}).vector == VectorConfig(Pooling.MEAN, (), is_normalized=False)


def test_modules_are_read_in_their_order():
    files = {"modules.json": [*MODULES[:2], DENSE, MODULES[2]], "2_Dense/config.json": DENSE_CONFIG, **MEAN}
    vector = read(files).vector
    assert (vector.pooling, vector.is_normalized) == (Pooling.MEAN, True)
    [dense] = vector.dense
    assert (dense.tensor, dense.in_size, dense.out_size, dense.activation) == (
        "2_Dense/linear",
        32,
        12,
        Activation.TANH,
    )


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling.CLS),
        ({"pooling_mode_max_tokens": True}, Pooling.MAX),
        ({"pooling_mode_lasttoken": True}, Pooling.LAST),
        ({"pooling_mode": "cls"}, Pooling.CLS),
        ({"pooling_mode": "lasttoken"}, Pooling.LAST),
    ],
)
def test_older_files_switch_a_pooling_on_and_newer_ones_name_it(config, pooling):
    assert read({"modules.json": MODULES, "1_Pooling/config.json": config}).vector.pooling is pooling


def with_pooling(*modules, files=None, **pooling):
    return {"modules.json": [*MODULES[:2], *modules], "1_Pooling/config.json": pooling, **(files or {})}


ODD_DENSE = {"2_Dense/config.json": DENSE_CONFIG | {"activation_function": "x.Odd"}}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (with_module("CNN"), "CNN"),
        (with_module("Dense"), "Dense"),
        ({"modules.json": [{**MODULES[0], "path": "0_Transformer"}]}, "0_Transformer"),
        ({"modules.json": MODULES[:1]}, "no Pooling"),
        (with_pooling(pooling_mode_weightedmean_tokens=True), "weightedmean"),
        (
            with_pooling(pooling_mode_cls_token=True, pooling_mode_max_tokens=True),
            "cls_token and pooling_mode_max_tokens",
        ),
        (with_pooling(pooling_mode="cls", include_prompt=False), "include_prompt"),
        (with_pooling(MODULES[2], DENSE, pooling_mode="cls"), "Dense"),
        (with_pooling(DENSE, files=ODD_DENSE, pooling_mode="cls"), "x.Odd"),
        (with_pooling(DENSE, files={"2_Dense/config.json": {}}, pooling_mode="cls"), "in_features"),
        ({"sentence_bert_config.json": {"do_lower_case": True}}, "do_lower_case"),
        ({"config_sentence_transformers.json": {"default_prompt_name": "query"}}, "query"),
    ],
)
def test_what_is_not_served_is_refused_by_name(files, named):
    with pytest.raises(UnsupportedModel, match=named):
        read(files)
