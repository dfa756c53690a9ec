"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value.

Source: Yang et al. 2024, arXiv:2407.10671; transformers `configuration_qwen2.py` (which layers have a window).
"""

from service.models.config import DecoderConfig, HubConfig, read_decoder, read_sliding_windows


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `qwen2`."""
    return read_decoder(config, has_qkv_bias=True, sliding_windows=read_qwen_windows(config))


def read_qwen_windows(config: HubConfig) -> tuple[int | None, ...]:
    """Return each layer's window: none unless `use_sliding_window`, and then from `max_window_layers` on."""
    if not config.flag("use_sliding_window"):
        return ()
    first_layer = int(config.values.get("max_window_layers", 28))
    return read_sliding_windows(config, config.required_int("num_hidden_layers"), first_layer=first_layer)
