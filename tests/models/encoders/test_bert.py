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
