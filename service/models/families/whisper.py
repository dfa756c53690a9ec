"""Whisper: a decoder of text with learned positions whose layers attend to an encoder of 30 s of sound.

Source: Radford et al. 2022, arXiv:2212.04356; https://huggingface.co/docs/transformers/model_doc/whisper
(WhisperConfig).
"""

from service.models.config import HubConfig
from service.models.description import (
    Attention,
    DecoderConfig,
    FeedForward,
    Layer,
    Norm,
    NormKind,
    SpeechEncoder,
    TensorNames,
)

NORM = Norm(1e-5, NormKind.LAYER, is_scaled_wide=True, has_bias=True)
_OF_LAYER = {
    "attention_norm": "self_attn_layer_norm",
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "gate_up": ("fc1",),
    "down": "fc2",
    "final_norm": "layer_norm",
}
ENCODER_NAMES = TensorNames(embed="", prefix="encoder.", **_OF_LAYER)
DECODER_NAMES = TensorNames(
    embed="embed_tokens",
    positions="embed_positions",
    memory_norm="encoder_attn_layer_norm",
    memory_qkv=("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"),
    memory_output="encoder_attn.out_proj",
    prefix="decoder.",
    head="proj_out",
    **_OF_LAYER,
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `whisper`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("quantization_config")
    config.refuse_unless("scale_embedding", False)
    config.refuse_unless("tie_word_embeddings", True)
    hidden_size, context_len = config.required_int("d_model"), config.required_int("max_target_positions")
    heads = _heads(config, "decoder_attention_heads", hidden_size)
    layer = Layer(heads, _feed_forward(config, "decoder_ffn_dim"), NORM, NORM, memory_attention=heads, memory_norm=NORM)
    return DecoderConfig(
        model_type="whisper",
        vocab_size=config.required_int("vocab_size"),
        hidden_size=hidden_size,
        context_len=context_len,
        layers=(layer,) * config.required_int("decoder_layers"),
        final_norm=NORM,
        has_tied_embeddings=True,
        names=DECODER_NAMES,
        num_positions=context_len,
        speech_encoder=_encoder(config, hidden_size),
    )


def _encoder(config: HubConfig, hidden_size: int) -> SpeechEncoder:
    if hidden_size % 2 or hidden_size < 4:
        raise config.refuse(f"d_model = {hidden_size} has no half for sines and one for cosines.")
    heads = _heads(config, "encoder_attention_heads", hidden_size)
    layer = Layer(heads, _feed_forward(config, "encoder_ffn_dim"), NORM, NORM)
    return SpeechEncoder(
        num_mels=config.required_int("num_mel_bins"),
        num_positions=config.required_int("max_source_positions"),
        hidden_size=hidden_size,
        layers=(layer,) * config.required_int("encoder_layers"),
        final_norm=NORM,
        names=ENCODER_NAMES,
    )


def _heads(config: HubConfig, key: str, hidden_size: int) -> Attention:
    num_heads = config.required_int(key)
    if hidden_size % num_heads:
        raise config.refuse(f"d_model = {hidden_size} is not a multiple of {key} = {num_heads}.")
    head_dim = hidden_size // num_heads
    return Attention(
        num_heads,
        num_heads,
        head_dim,
        scale=head_dim**-0.5,
        rotation=None,
        has_bias=True,
        has_key_bias=False,
        has_output_bias=True,
    )


def _feed_forward(config: HubConfig, key: str) -> FeedForward:
    activation = config.activation("activation_function")
    return FeedForward(config.required_int(key), activation, is_gated=False, has_bias=True)
