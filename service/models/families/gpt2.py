"""GPT-2: learned positions, LayerNorms, biases, and weights of layers that are stored [in, out].

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; transformers
`models/gpt2/modeling_gpt2.py`.
"""

from service.models.config import HubConfig
from service.models.description import (
    Attention,
    DecoderConfig,
    FeedForward,
    Layer,
    Norm,
    NormKind,
    TensorNames,
)

NAMES = TensorNames(
    embed="wte",
    positions="wpe",
    layers="h",
    attention_norm="ln_1",
    qkv=("attn.c_attn",),
    output="attn.c_proj",
    mlp_norm="ln_2",
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
    final_norm="ln_f",
    has_transposed_products=True,
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `gpt2`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("quantization_config")
    config.refuse_unless("add_cross_attention", False)
    hidden_size, num_heads = config.required_int("n_embd"), config.required_int("n_head")
    if hidden_size % num_heads:
        raise config.refuse(f"n_embd = {hidden_size} is not a multiple of n_head = {num_heads}.")
    head_dim, context_len = hidden_size // num_heads, config.required_int("n_positions")
    scale = head_dim**-0.5 if config.flag("scale_attn_weights") else 1.0
    is_scaled_by_layer = config.flag("scale_attn_by_inverse_layer_idx")
    norm = Norm(config.number("layer_norm_epsilon"), NormKind.LAYER, is_scaled_wide=True, has_bias=True)
    feed_forward = FeedForward(
        config.optional_int("n_inner", 4 * hidden_size),
        config.activation("activation_function"),
        is_gated=False,
        has_bias=True,
    )
    attentions = (
        Attention(
            num_heads,
            num_heads,
            head_dim,
            scale=scale / (layer + 1) if is_scaled_by_layer else scale,
            rotation=None,
            has_bias=True,
            has_output_bias=True,
        )
        for layer in range(config.required_int("n_layer"))
    )
    return DecoderConfig(
        model_type="gpt2",
        vocab_size=config.required_int("vocab_size"),
        hidden_size=hidden_size,
        context_len=context_len,
        layers=tuple(Layer(attention, feed_forward, norm, norm) for attention in attentions),
        final_norm=norm,
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        names=NAMES,
        num_positions=context_len,
    )
