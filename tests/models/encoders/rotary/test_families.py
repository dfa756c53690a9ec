"""The configurations of encoders with rotary positions: what is read, and what is refused by name."""

import pytest

from service.errors import UnsupportedModel
from service.kernels.windows import Sight
from service.models.encoders.config import Pooling
from service.models.encoders.registry import is_encoder, read_encoder_config
from tests.encoder.tiny import MODULES
from tests.parity.encoder_cases import ENCODER_CASES

CONFIGS = {case.name: case.hub_config for case in ENCODER_CASES}


def read(name, **changes):
    return read_encoder_config("model", CONFIGS[name] | changes)


def test_a_decoder_is_an_encoder_if_its_checkpoint_says_so():
    config = CONFIGS["qwen3"]
    assert not is_encoder(config, {})
    assert not is_encoder(config | {"architectures": ["Qwen3ForCausalLM"]}, {})
    assert is_encoder(config | {"architectures": ["Qwen3Model"]}, {})
    assert is_encoder(config | {"architectures": ["Qwen3ForCausalLM"]}, {"modules.json": MODULES})
    assert is_encoder(CONFIGS["qwen3_reranker"], {})


def test_a_decoder_without_files_gives_the_vector_of_its_last_token():
    assert read("qwen3").vector.poolings == (Pooling.LAST,)
    assert read("modernbert").vector.poolings == (Pooling.MEAN,)


def test_a_causal_window_counts_the_token_itself_and_one_to_both_sides_is_half_as_wide():
    assert read("mistral").layers[0].sight == Sight(is_causal=True, reach=7)
    assert [layer.sight.reach for layer in read("gemma3").layers] == [4, 4, 4, 4, 4, None, 4]
    assert read("gemma3", use_bidirectional_attention=False).layers[0].sight == Sight(is_causal=True, reach=7)
    assert [layer.sight.reach for layer in read("modernbert").layers] == [None, 4, 4, None, 4]


def test_both_spellings_of_the_positions_of_two_kinds_of_layers_are_one():
    older = read("gemma3", rope_theta=5e5, rope_local_base_freq=2e4)
    newer = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4}}
    assert older == read("gemma3", rope_parameters=newer)
    assert (older.layers[0].rope.theta, older.layers[5].rope.theta) == (2e4, 5e5)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen3", {"hidden_act": "mish"}),
        ("gemma3", {"attn_logit_softcapping": 30.0}),
        ("gemma3", {"layer_types": ["full_attention"]}),
        ("modernbert", {"norm_bias": True}),
        ("modernbert", {"hidden_activation": "mish"}),
        ("modernbert", {"num_attention_heads": 5}),
        ("qwen3_reranker", {"id2label": {"0": "a", "1": "b"}}),
    ],
)
def test_what_is_not_served_is_refused_by_name(name, changes):
    [key] = changes
    with pytest.raises(UnsupportedModel, match=key):
        read(name, **changes)


def test_a_reranker_of_a_family_without_one_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="gemma3"):
        read("gemma3", architectures=["Gemma3TextForSequenceClassification"], id2label={"0": "LABEL_0"})


@pytest.mark.parametrize(
    "changes",
    [
        {"is_causal": False},
        {"architectures": ["MistralEncoderModel"]},
        {"architectures": ["LlamaBiModel"]},
        {"architectures": ["Qwen2BiForMNTP"]},
        {"architectures": ["LlamaBidirectionalModel"]},
        {"architectures": ["LlamaBidirectionalForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
        {"model_type": "eurobert"},
        {"model_type": "llama_bidirec"},
    ],
)
def test_a_token_of_a_decoder_sees_both_sides_where_the_configuration_says_so(changes):
    config = CONFIGS["llama"] | changes
    assert is_encoder(config, {})
    assert {layer.sight for layer in read_encoder_config("model", config).layers} == {Sight()}
    if "Classification" not in str(changes):
        assert read_encoder_config("model", config).vector.poolings == (Pooling.MEAN,)


def test_a_window_to_both_sides_reaches_as_far_as_transformers_has_it():
    assert read("mistral", is_causal=False).layers[0].sight == Sight(reach=8)
    changes = {"use_bidirectional_attention": None, "is_causal": False}
    assert read("gemma3", **changes).layers[0].sight == Sight(reach=8)


def test_a_class_of_code_in_the_checkpoint_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="LlamaThinkingModel"):
        read_encoder_config("model", CONFIGS["llama"] | {"architectures": ["LlamaThinkingModel"]}, {})


def test_a_family_that_is_no_encoder_is_refused_as_one_where_the_files_make_vectors():
    config = {"model_type": "nomic_bert"}
    assert is_encoder(config, {"modules.json": MODULES})
    with pytest.raises(UnsupportedModel, match=r"'nomic_bert' is not served as an encoder\. Served: bert"):
        read_encoder_config("model", config, {"modules.json": MODULES})
