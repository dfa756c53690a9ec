"""The configuration of BERT: what is read, and what is refused by name."""

import pytest

from service.errors import UnsupportedModel
from service.models.description import Activation
from service.models.encoders.registry import is_encoder, read_encoder_config
from tests.encoder.tiny import CONFIG


def read(**changes):
    return read_encoder_config("model", CONFIG | changes)


def test_a_configuration_gives_the_geometry():
    config = read()
    assert (config.head_dim, config.context_len, config.vector_size) == (8, 64, 32)
    assert config.activation == Activation.GELU


def test_encoders_are_told_from_decoders_by_their_family():
    assert is_encoder(CONFIG, {})
    assert not is_encoder({"model_type": "llama"}, {})


@pytest.mark.parametrize(
    "changes",
    [
        {"position_embedding_type": "relative_key"},
        {"hidden_act": "mish"},
        {"is_decoder": True},
        {"num_attention_heads": 5},
        {"hidden_size": None},
        {"quantization_config": {}},
    ],
)
def test_what_is_not_served_is_refused_by_name(changes):
    [name] = changes
    with pytest.raises(UnsupportedModel, match=name):
        read(**changes)


@pytest.mark.parametrize(("padding_id", "first"), [(0, 1), (1, 2), (None, 2), (5, 6)])
def test_positions_begin_after_the_id_of_the_padding_token_whatever_it_is(padding_id, first):
    config = read(model_type="roberta", architectures=["RobertaModel"], pad_token_id=padding_id)
    assert config.first_position == first


def test_distilbert_has_keys_and_names_of_its_own_and_no_types():
    keys = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "activation": "relu"}
    own = {key: value for key, value in CONFIG.items() if key in {"vocab_size", "max_position_embeddings"}}
    config = read_encoder_config("model", own | keys | {"model_type": "distilbert"})
    assert (config.hidden_size, config.mlp_size, config.num_layers, config.num_token_types) == (32, 64, 2, 0)
    assert (config.activation, config.names.query) == (Activation.RELU, "attention.q_lin")
