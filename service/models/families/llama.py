"""Llama 1 to 3.x, and the keys of `config.json` that its descendants share with it.

Source: Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783;
https://huggingface.co/docs/transformers/model_doc/llama (LlamaConfig).
"""

from collections.abc import Sequence
from typing import Any

from service.models.config import HubConfig
from service.models.description import Attention, DecoderConfig, Experts, FeedForward, Layer, Norm, TensorNames
from service.models.families.rope_parameters import read_rope
from service.models.quantization_config import read_layer_storage

NAMES = TensorNames(
    prefix="model.",
    embed="embed_tokens",
    final_norm="norm",
    attention_norm="input_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `llama`."""
    has_bias = config.flag("attention_bias")
    attention = read_attention(config, has_bias=has_bias, has_output_bias=has_bias)
    feed_forward = read_feed_forward(config, has_bias=config.flag("mlp_bias"))
    return read_decoder(config, pre_norm_layers(config, attention, feed_forward))


def read_attention(config: HubConfig, **options: Any) -> Attention:
    """Read the heads and the rotation.

    Args:
        config: the configuration, with the defaults of its family.
        options: further fields of the description.

    Raises:
        UnsupportedModel: a value is missing, malformed, or contradicts another.
    """
    hidden_size, num_heads = config.required_int("hidden_size"), config.required_int("num_attention_heads")
    num_kv_heads = config.optional_int("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.refuse(
            f"num_attention_heads = {num_heads} is not a multiple of num_key_value_heads = {num_kv_heads}."
        )
    if config.values.get("head_dim") is None and hidden_size % num_heads:
        raise config.refuse(
            f"hidden_size = {hidden_size} is not a multiple of num_attention_heads = {num_heads}; set head_dim."
        )
    head_dim = config.optional_int("head_dim", hidden_size // num_heads)
    if "rotation" not in options:
        options["rotation"] = read_rope(config, head_dim=head_dim)
    return Attention(num_heads, num_kv_heads, head_dim, **{"scale": head_dim**-0.5} | options)


def read_feed_forward(config: HubConfig, *, has_bias: bool = False) -> FeedForward:
    """Read a gated feed-forward.

    Raises:
        UnsupportedModel: a value is missing or malformed, or the activation is not served.
    """
    return FeedForward(config.required_int("intermediate_size"), config.activation("hidden_act"), has_bias=has_bias)


def read_norm(config: HubConfig) -> Norm:
    """Read the RMS norm that all layers have."""
    return Norm(config.number("rms_norm_eps"))


def pre_norm_layers(
    config: HubConfig, attention: Attention | Sequence[Attention], feed_forward: FeedForward | Experts
) -> tuple[Layer, ...]:
    """Return layers that normalize the input of attention and that of the feed-forward.

    Args:
        config: the configuration.
        attention: one value per layer, or one for all.
        feed_forward: the same for all layers.
    """
    norm, num_layers = read_norm(config), config.required_int("num_hidden_layers")
    each = [attention] * num_layers if isinstance(attention, Attention) else attention
    return tuple(Layer(one, feed_forward, norm, norm) for one in each)


def read_decoder(
    config: HubConfig, layers: Sequence[Layer], names: TensorNames = NAMES, **options: Any
) -> DecoderConfig:
    """Read the rest of a description; `options` are further fields of it.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    given: dict[str, Any] = {"has_tied_embeddings": config.flag("tie_word_embeddings")} | options
    if "final_norm" not in given:
        given["final_norm"] = read_norm(config)
    return DecoderConfig(
        model_type=str(config.values.get("model_type")),
        vocab_size=config.required_int("vocab_size"),
        hidden_size=config.required_int("hidden_size"),
        context_len=_context_len(config, layers),
        layers=tuple(layers),
        names=names,
        layer_storage=read_layer_storage(config.uri, config.values),
        **given,
    )


def _context_len(config: HubConfig, layers: Sequence[Layer]) -> int:
    """Return the longest text: with LongRoPE the original context, unless the operator asks for more."""
    rotations = [layer.attention.rotation for layer in layers if layer.attention is not None]
    originals = [rope.original_context_len for rope in rotations if rope is not None and rope.scaling == "longrope"]
    claimed = config.required_int("max_position_embeddings")
    short = [original for original in originals if (config.max_model_len or 0) <= original]
    return min([claimed, *short])
