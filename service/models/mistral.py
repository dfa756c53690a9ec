"""Mistral: Llama with a sliding window on every layer.

Source: Jiang et al. 2023, arXiv:2310.06825.
"""

from service.models.config import DecoderConfig, HubConfig, read_decoder, read_sliding_windows


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `mistral`; a null `sliding_window` means no window."""
    windows = read_sliding_windows(config, config.required_int("num_hidden_layers"), first_layer=0)
    return read_decoder(config, sliding_windows=windows)
