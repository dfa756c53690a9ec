"""OLMo 2 and 3: norms after both branches and none before, and norms over whole queries and keys; 3 has windows.

Source: OLMo Team 2024, arXiv:2501.00656; transformers `models/olmo2/modeling_olmo2.py`,
`models/olmo3/modeling_olmo3.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, Layer, Norm
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.llama import NAMES, read_attention, read_decoder, read_feed_forward
from service.models.families.rope_parameters import read_ropes

POST_NORM_NAMES = replace(
    NAMES,
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    attention_post_norm="post_attention_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `olmo2` or `olmo3`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("clip_qkv")
    norm, has_bias = Norm(config.number("rms_norm_eps"), is_scaled_wide=True), config.flag("attention_bias")
    has_kinds = config.values["model_type"] == "olmo3"
    full = read_attention(
        config,
        has_bias=has_bias,
        has_output_bias=has_bias,
        qk_norm=norm,
        is_qk_norm_whole=True,
        **({"rotation": None} if has_kinds else {}),
    )
    attentions = [full] * config.required_int("num_hidden_layers")
    if has_kinds:
        ropes = read_ropes(config, head_dim=full.head_dim)
        full = replace(full, rotation=ropes[FULL])
        sliding = replace(full, window=config.int_or_none("sliding_window"), rotation=ropes[SLIDING])
        rule = [SLIDING if (layer + 1) % 4 else FULL for layer in range(len(attentions))]
        attentions = [sliding if kind == SLIDING else full for kind in read_layer_kinds(config, rule)]
    feed_forward = read_feed_forward(config)
    layers = [Layer(attention, feed_forward, None, None, norm, norm) for attention in attentions]
    return read_decoder(config, layers, POST_NORM_NAMES, final_norm=norm)
