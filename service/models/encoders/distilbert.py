"""DistilBERT: BERT without types of tokens, under other names.

Source: Sanh et al. 2019, arXiv:1910.01108; transformers `models/distilbert/configuration_distilbert.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.encoders.bert import read_bert
from service.models.encoders.config import EncoderConfig, EncoderNames, VectorConfig

NAMES = EncoderNames(
    layer="transformer.layer.",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    mlp_norm="output_layer_norm",
)
# The keys of BERT, and those of this family.
KEYS = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_act": "activation",
}


def read_config(config: HubConfig, vector: VectorConfig) -> EncoderConfig:
    """Read a `config.json` of model_type `distilbert`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    values = {key: config.values[own] for key, own in KEYS.items() if own in config.values}
    read = read_bert(replace(config, values={**values, **config.values}), vector, first_position=0)
    return replace(read, num_token_types=0, names=NAMES)
