"""Decoders that were trained to encode, with causal attention: Qwen3-Embedding, e5-mistral, and rerankers like them.

Their configuration is the decoder's own.
Source: Zhang et al. 2025, arXiv:2506.05176 (Qwen3-Embedding); Wang et al. 2023, arXiv:2401.00368 (e5-mistral).
"""

from dataclasses import replace

from service.errors import UnsupportedModel
from service.kernels.windows import Sight
from service.models.config import HubConfig
from service.models.description import Experts
from service.models.encoders.config import VectorConfig
from service.models.encoders.rotary.config import RotaryConfig, RotaryLayer
from service.models.registry import read_config as read_decoder_config


def read_config(config: HubConfig, vector: VectorConfig) -> RotaryConfig:
    """Read a `config.json` of a decoder family that is served as an encoder too.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("quantization_config")
    decoder = read_decoder_config(config.uri, config.values)
    first, heads = decoder.layers[0], decoder.heads
    mlp = first.feed_forward
    if isinstance(mlp, Experts):
        raise UnsupportedModel(config.uri, "config.json: a mixture of experts is not served as an encoder.")
    if heads.has_output_bias or mlp.has_bias:
        raise UnsupportedModel(config.uri, "config.json: attention_bias and mlp_bias are not served in an encoder.")
    windows = [layer.attention.window for layer in decoder.layers]
    sights = [Sight(is_causal=True, reach=None if window is None else window - 1) for window in windows]
    assert heads.rotation is not None
    return RotaryConfig(
        model_type=decoder.model_type,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        mlp_size=mlp.size,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        context_len=decoder.context_len,
        norm=decoder.final_norm,
        activation=mlp.activation,
        attention_scale=heads.scale,
        layers=tuple(RotaryLayer(heads.rotation, sight) for sight in sights),
        names=replace(decoder.names, prefix=""),
        vector=vector,
        has_qkv_bias=heads.has_bias,
    )
