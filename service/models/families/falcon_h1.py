"""Falcon-H1: attention and Mamba-2 side by side in each layer, and a multiplier for what each projection has.

Source: transformers `models/falcon_h1/modeling_falcon_h1.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, Layer, Norm, StateSpace, StateSpaceFactors
from service.models.families import mamba2
from service.models.families.bamba import BAMBA_NAMES
from service.models.families.llama import read_attention, read_decoder, read_feed_forward, read_norm


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `falcon_h1`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    norm, has_bias = read_norm(config), config.flag("attention_bias")
    attention = read_attention(config, has_bias=has_bias, has_output_bias=has_bias)
    gate, down = _numbers(config, "mlp_multipliers", 2)
    feed_forward = read_feed_forward(config, has_bias=config.flag("mlp_bias"))
    layer = Layer(
        replace(attention, scale=attention.scale * config.number("key_multiplier")),
        replace(feed_forward, gate_multiplier=gate),
        norm,
        norm,
        state=_read_state(config),
        attention_input_multiplier=config.number("attention_in_multiplier"),
        attention_multiplier=config.number("attention_out_multiplier"),
        state_multiplier=config.number("ssm_out_multiplier"),
        feed_forward_multiplier=down,
    )
    return read_decoder(
        config,
        [layer] * config.required_int("num_hidden_layers"),
        BAMBA_NAMES,
        final_norm=norm,
        embed_multiplier=config.number("embedding_multiplier"),
        logits_multiplier=config.number("lm_head_multiplier"),
    )


def _read_state(config: HubConfig) -> StateSpace:
    usual = config.required_int("mamba_expand") * config.required_int("hidden_size")
    norm = Norm(config.number("rms_norm_eps"), is_scaled_wide=True) if config.flag("mamba_rms_norm") else None
    return mamba2.read_state_space(
        config,
        config.optional_int("mamba_d_ssm", usual),
        norm,
        is_norm_gated=not config.flag("mamba_norm_before_gate"),
        has_output_bias=config.flag("projectors_bias"),
        factors=StateSpaceFactors(config.number("ssm_in_multiplier"), *_numbers(config, "ssm_multipliers", 5)),
    )


def _numbers(config: HubConfig, key: str, count: int) -> list[float]:
    """Return positive numbers, all of them 1 where the key is absent or null."""
    given = config.values[key]
    if given is None:
        return [1.0] * count
    if not isinstance(given, list) or len(given) != count:
        raise config.refuse(f"{key} is {given!r}, which should hold {count} numbers.")
    each = (replace(config, values={f"{key}[{place}]": number}) for place, number in enumerate(given))
    return [one.number(next(iter(one.values))) for one in each]
