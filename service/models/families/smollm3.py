"""SmolLM3: Llama with no rotation on every fourth layer.

Source: transformers `models/smollm3/configuration_smollm3.py`; Yang et al. 2025, arXiv:2501.18795 (RNoPE).
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.llama import pre_norm_layers, read_attention, read_decoder, read_feed_forward


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `smollm3`."""
    has_bias = config.flag("attention_bias")
    attention = read_attention(config, has_bias=has_bias, has_output_bias=has_bias)
    has_window = config.flag("use_sliding_window") and config.values.get("sliding_window") is not None
    is_rotated = _rotated_layers(config)
    kinds = read_layer_kinds(config, [FULL if rotates or not has_window else SLIDING for rotates in is_rotated])
    window = config.required_int("sliding_window") if has_window else None
    layers = [
        replace(
            attention,
            rotation=attention.rotation if rotates else None,
            window=window if kind == SLIDING else None,
        )
        for rotates, kind in zip(is_rotated, kinds, strict=True)
    ]
    feed_forward = read_feed_forward(config, has_bias=config.flag("mlp_bias"))
    return read_decoder(config, pre_norm_layers(config, layers, feed_forward))


def _rotated_layers(config: HubConfig) -> list[bool]:
    """Return whether each layer rotates queries and keys."""
    num_layers, given = config.required_int("num_hidden_layers"), config.values.get("no_rope_layers")
    if given is None:
        interval = config.required_int("no_rope_layer_interval")
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(given, list) or len(given) < num_layers or not {0, 1}.issuperset(given):
        raise config.refuse(f"no_rope_layers must hold a 0 or a 1 for each of {num_layers} layers.")
    return [bool(rotates) for rotates in given[:num_layers]]
