"""Mistral: Llama with a sliding window; Ministral has it on some layers, and Ministral 3 queries that grow.

Source: Jiang et al. 2023, arXiv:2310.06825; transformers `models/ministral/configuration_ministral.py`,
`models/ministral3/modeling_ministral3.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.llama import (
    pre_norm_layers,
    read_attention,
    read_decoder,
    read_feed_forward,
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `mistral`, `ministral` or `ministral3`; a null window means none."""
    sliding = read_attention(config, window=config.int_or_none("sliding_window"))
    attentions = [sliding] * config.required_int("num_hidden_layers")
    if config.values["model_type"] == "ministral":
        full, default = replace(sliding, window=None), [FULL if sliding.window is None else SLIDING] * len(attentions)
        attentions = [sliding if kind == SLIDING else full for kind in read_layer_kinds(config, default)]
    return read_decoder(config, pre_norm_layers(config, attentions, read_feed_forward(config)))
