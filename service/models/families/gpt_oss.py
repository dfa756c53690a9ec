"""gpt-oss: sinks, windows on every other layer, biases, and experts with a clamped SwiGLU.

Source: OpenAI 2025, arXiv:2508.10925; transformers `models/gpt_oss/modeling_gpt_oss.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import Activation, DecoderConfig, Experts, FeedForward, Layer, Norm, RouterBias
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.llama import NAMES as LLAMA_NAMES
from service.models.families.llama import read_attention, read_decoder

NAMES = replace(
    LLAMA_NAMES,
    sinks="self_attn.sinks",
    router="mlp.router",
    expert_gate_up=("mlp.experts.gate_up_proj",),
    expert_down="mlp.experts.down_proj",
    has_transposed_experts=True,
)
SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `gpt_oss`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("hidden_act", "silu")
    config.refuse_unless("swiglu_alpha", SWIGLU_ALPHA)
    config.refuse_unless("swiglu_limit", SWIGLU_LIMIT)
    has_bias, num_layers = config.flag("attention_bias"), config.required_int("num_hidden_layers")
    full = read_attention(config, has_bias=has_bias, has_output_bias=has_bias, has_sinks=True)
    sliding = replace(full, window=config.int_or_none("sliding_window"))
    experts = Experts(
        config.required_int("num_local_experts"),
        config.at_most("num_experts_per_tok", "num_local_experts"),
        FeedForward(config.required_int("intermediate_size"), Activation.CLAMPED_SWIGLU, has_bias=True),
        bias=RouterBias.BOTH,
        is_interleaved=True,
    )
    norm = Norm(config.number("rms_norm_eps"), is_scaled_wide=True)
    kinds = read_layer_kinds(config, [FULL if layer % 2 else SLIDING for layer in range(num_layers)])
    layers = [Layer(sliding if kind == SLIDING else full, experts, norm, norm) for kind in kinds]
    return read_decoder(config, layers, NAMES, final_norm=norm)
