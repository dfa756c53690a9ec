"""BERT, and what is trained from it: MiniLM, bge, e5, gte.

Source: Devlin et al. 2018, arXiv:1810.04805.
"""

from service.errors import UnsupportedModel
from service.models.config import HubConfig
from service.models.description import Activation
from service.models.encoders.config import EncoderConfig, VectorConfig


def read_config(config: HubConfig, vector: VectorConfig) -> EncoderConfig:
    """Read a `config.json` of model_type `bert`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.

    Source: https://huggingface.co/docs/transformers/model_doc/bert (BertConfig)
    """
    return read_bert(config, vector, first_position=0)


def read_bert(config: HubConfig, vector: VectorConfig, *, first_position: int) -> EncoderConfig:
    """Read the values that BERT and its descendants share.

    Args:
        config: the model's configuration.
        vector: the way from hidden states to a vector.
        first_position: the row of a text's first token in the table of positions.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("position_embedding_type", "absolute")
    config.refuse_unless("is_decoder", False)
    config.refuse_unless("add_cross_attention", False)
    config.refuse_unless("quantization_config")
    hidden_size, num_heads = config.required_int("hidden_size"), config.required_int("num_attention_heads")
    if hidden_size % num_heads:
        raise UnsupportedModel(
            config.uri,
            f"config.json: hidden_size = {hidden_size} is not a multiple of num_attention_heads = {num_heads}.",
        )
    return EncoderConfig(
        model_type=str(config.values["model_type"]),
        vocab_size=config.required_int("vocab_size"),
        hidden_size=hidden_size,
        mlp_size=config.required_int("intermediate_size"),
        num_layers=config.required_int("num_hidden_layers"),
        num_heads=num_heads,
        num_positions=config.required_int("max_position_embeddings"),
        norm_eps=float(config.values.get("layer_norm_eps", 1e-12)),
        activation=config.activation("hidden_act", Activation.GELU),
        vector=vector,
        first_position=first_position,
        num_token_types=config.optional_int("type_vocab_size", 2),
    )
