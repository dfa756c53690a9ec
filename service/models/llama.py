"""Llama 1 to 3.x.

Source: Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783.
"""

from service.models.config import DecoderConfig, HubConfig, read_decoder


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `llama`."""
    has_attention_bias = config.flag("attention_bias")
    return read_decoder(
        config,
        has_qkv_bias=has_attention_bias,
        has_output_bias=has_attention_bias,
        has_mlp_bias=config.flag("mlp_bias"),
    )
