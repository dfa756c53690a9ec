"""Decoders that were trained to encode, with causal attention: Qwen3-Embedding, e5-mistral, and rerankers like them.

Their configuration is the decoder's own.
Source: Zhang et al. 2025, arXiv:2506.05176 (Qwen3-Embedding); Wang et al. 2023, arXiv:2401.00368 (e5-mistral).
"""

from dataclasses import replace

from service.errors import UnsupportedModel
from service.kernels.windows import Sight
from service.models.config import HubConfig
from service.models.encoders.config import Activation, VectorConfig
from service.models.encoders.rotary.config import Norm, RotaryConfig, RotaryLayer, TensorNames
from service.models.registry import read_config as read_decoder_config

NAMES = TensorNames(
    embed="embed_tokens",
    final_norm="norm",
    attention_norm="input_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
)
QK_NORM_NAMES = replace(NAMES, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")


def read_config(config: HubConfig, vector: VectorConfig) -> RotaryConfig:
    """Read a `config.json` of a decoder family that is served as an encoder too.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("quantization_config")
    decoder = read_decoder_config(config.uri, config.values)
    if decoder.has_output_bias or decoder.has_mlp_bias:
        raise UnsupportedModel(config.uri, "config.json: attention_bias and mlp_bias are not served in an encoder.")
    sights = [
        Sight(is_causal=True, reach=None if window is None else window - 1)
        for window in map(decoder.sliding_window, range(decoder.num_layers))
    ]
    return RotaryConfig(
        model_type=decoder.model_type,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        mlp_size=decoder.mlp_size,
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        context_len=decoder.context_len,
        norm=Norm.RMS,
        norm_eps=decoder.norm_eps,
        activation=Activation.SILU,
        attention_scale=decoder.head_dim**-0.5,
        layers=tuple(RotaryLayer(decoder.rope, sight) for sight in sights),
        names=QK_NORM_NAMES if decoder.has_qk_norm else NAMES,
        vector=vector,
        has_qkv_bias=decoder.has_qkv_bias,
    )
