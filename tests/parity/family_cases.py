"""Tiny random checkpoints of the families that are not Llama with a variation.

The names and shapes of their tensors come from transformers, or from Levanter for a family that only Levanter has, and
are kept beside the reference logits. Weights come from numpy's frozen `RandomState`. Needs neither jax nor torch.
"""

import zlib
from dataclasses import dataclass

import numpy as np

from tests.parity.cases import NUM_TOKENS, Case

WINDOW = 8  # tokens; less than a fifth of the text
CONSTANTS = {"act_fn.beta": 0.5, "act_fn.eps": -1e-6}  # of xIELU
_FULL, _SLIDING, _CONV, _LINEAR = "full_attention", "sliding_attention", "conv", "linear_attention"
_GEMMA = {"head_dim": 16, "tie_word_embeddings": True, "hidden_act": None}
_GEMMA_4 = {
    **{"head_dim": 16, "sliding_window": WINDOW, "tie_word_embeddings": True, "hidden_size_per_layer_input": 0},
    "hidden_act": None,
}
_LONG = {
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 2.0, 4.0],
    "type": "longrope",
}
_PHI4_MINI = {"partial_rotary_factor": 0.75, "rope_scaling": _LONG, "pad_token_id": None}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.22,
    "logits_scaling": 2.0,
}
_QWEN_MOE = {
    "head_dim": 8,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
}
_GPT_OSS = {
    **{
        "head_dim": 16,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": WINDOW,
        "pad_token_id": None,
    },
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 8.0, "truncate": False},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 16},
    },
}
_MINISTRAL_3 = {
    **{"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 8},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4},
}
_GRANITE_4 = {
    **_GRANITE,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 40,
    "layer_types": ["attention"] * 3,
    "mamba_n_heads": 8,
}


_QWEN_3_5 = {
    **{"head_dim": 16, "num_hidden_layers": 4, "layer_types": None, "full_attention_interval": 3},
    **{"linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 6, "pad_token_id": None},
    "rope_parameters": {
        **{"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        **{"mrope_section": [2, 1, 1], "mrope_interleaved": True},
    },
}
_QWEN_3_5_EXPERTS = {
    **{"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "shared_expert_intermediate_size": 20,
}
_MAMBA = {
    **{"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_head": 8, "mamba_d_conv": 4},
    **{"mamba_expand": 2, "time_step_limit": [0.05, 0.4]},
}
_FALCON_H1 = {
    **{**_MAMBA, "mamba_d_ssm": 48, "mamba_d_head": 6, "num_hidden_layers": 2, "pad_token_id": None},
    **{"lm_head_multiplier": 0.7, "embedding_multiplier": 2.5, "mlp_multipliers": [0.6, 1.4], "key_multiplier": 0.8},
    **{"ssm_multipliers": [0.7, 1.3, 0.8, 1.2, 0.9], "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.75},
    **{"attention_in_multiplier": 1.1, "attention_out_multiplier": 0.9},
}
_NEMOTRON_H = {
    **{"head_dim": 16, "mlp_hidden_act": "relu2", "mamba_num_heads": 6, "mamba_head_dim": 8, "ssm_state_size": 12},
    **{"n_groups": 2, "conv_kernel": 4, "time_step_min": 0.05, "layer_norm_epsilon": 1e-3, "n_routed_experts": 6},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 20},
    **{"routed_scaling_factor": 1.5, "pad_token_id": None},
}
_OLMO_HYBRID = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12},
    **{"linear_conv_kernel_dim": 3, "pad_token_id": None},
}


@dataclass(frozen=True)
class FamilyCase(Case):
    """One checkpoint; `max_model_len` is what the operator asks for."""

    max_model_len: int | None = None

    def tensors(self) -> dict[str, np.ndarray]:
        """Draw every tensor of the checkpoint, under its family's names."""
        with np.load(self.reference_path) as kept:
            shapes = {str(name): tuple(map(int, shape.split())) for name, shape in kept["shapes"]}
        return {name: draw(self.model_type, name, shape) for name, shape in shapes.items()}


def draw(model_type: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw one tensor. Scales are around one, and the rest has a gain of about one, as in a trained model."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if name.endswith(tuple(CONSTANTS)):
        return np.full(shape, CONSTANTS[name[name.rindex("act_fn") :]], np.float32)
    is_norm = ("norm" in name or "ln_" in name) and name.endswith("weight") and len(shape) == 1
    is_plus_one = model_type.startswith("gemma") and not model_type.startswith("gemma4")
    is_plus_one |= model_type.startswith(("qwen3_5", "qwen3_next")) and not name.endswith("linear_attn.norm.weight")
    is_scale = (is_norm and not is_plus_one) or name.endswith(("layer_scalar", "per_expert_scale", "router.scale"))
    mean = float(is_scale)
    # Decays of 0.02 to 0.8, the rest of which another token's changes.
    if name.endswith("A_log"):
        return random.uniform(-1.5, 0.5, shape).astype(np.float32)
    if name.endswith("dt_bias"):
        return random.uniform(-4, -0.5, shape).astype(np.float32)
    if name.endswith(("_blocks", "_scales")):  # of MXFP4: any bits, and exponents of a gain of about one
        limits = (0, 256) if name.endswith("_blocks") else (122, 126)
        return random.randint(*limits, shape).astype(np.uint8)
    if model_type.startswith("gemma4") and name.endswith(("q_norm.weight", "k_norm.weight")):
        mean = 0.5  # its scores are not scaled
    spread = 4.0 if name.endswith("gate_up_proj_bias") else 0.2  # so that some are clamped
    return (random.randn(*shape) * spread + mean).astype(np.float32)


LEVANTER_TYPES = ("grug_moe",)  # that transformers does not have
FAMILY_CASES = (
    FamilyCase(
        "smollm3",
        "smollm3",
        {"num_hidden_layers": 4, "no_rope_layer_interval": 2, "pad_token_id": None},
    ),
    FamilyCase(
        "smollm3_window",
        "smollm3",
        {
            "num_hidden_layers": 2,
            "no_rope_layers": [0, 1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "pad_token_id": None,
        },
    ),
    FamilyCase("gemma", "gemma", {**_GEMMA, "hidden_act": "gelu_pytorch_tanh"}),
    FamilyCase(
        "gemma2",
        "gemma2",
        {
            **_GEMMA,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    FamilyCase(
        "gemma3",
        "gemma3_text",
        {
            **_GEMMA,
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING],
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                _FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 1_000_000.0},
                _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    FamilyCase(
        "exaone4",
        "exaone4",
        {"num_hidden_layers": 4, "sliding_window": WINDOW, "sliding_window_pattern": 2, "pad_token_id": None},
    ),
    FamilyCase("exaone4_full", "exaone4", {"sliding_window": None, "layer_types": [_FULL] * 3, "pad_token_id": None}),
    FamilyCase("glm", "glm", {"head_dim": 8, "pad_token_id": None}),
    FamilyCase("glm4", "glm4", {"head_dim": 16, "pad_token_id": None}),
    FamilyCase(
        "ministral", "ministral", {"head_dim": 8, "layer_types": [_SLIDING, _FULL, _SLIDING], "sliding_window": WINDOW}
    ),
    FamilyCase("ministral3", "ministral3", {"head_dim": 16, "pad_token_id": None, "rope_parameters": _MINISTRAL_3}),
    FamilyCase(
        "gemma4",
        "gemma4_text",
        {
            **_GEMMA_4,
            **{"attention_k_eq_v": True, "global_head_dim": 32, "num_global_key_value_heads": 1},
            **{"num_hidden_layers": 4, "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL]},
            "final_logit_softcapping": 3.0,
        },
    ),
    FamilyCase(
        "gemma4_experts",
        "gemma4_text",
        {
            **_GEMMA_4,
            **{"attention_k_eq_v": True, "global_head_dim": 32, "num_global_key_value_heads": 1},
            **{"num_hidden_layers": 2, "layer_types": [_SLIDING, _FULL], "enable_moe_block": True},
            **{"num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24},
        },
    ),
    FamilyCase(
        "gemma4_shared",
        "gemma4_text",
        {
            **{**_GEMMA_4, "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 96},
            **{"global_head_dim": 32, "num_hidden_layers": 7, "num_kv_shared_layers": 4, "use_double_wide_mlp": True},
            "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING, _FULL, _SLIDING, _FULL],
        },
    ),
    FamilyCase("gemma4_values", "gemma4_text", {**_GEMMA_4, "global_head_dim": 24}),
    FamilyCase(
        "lfm2",
        "lfm2",
        {
            **{"num_hidden_layers": 5, "layer_types": [_CONV, _CONV, _FULL, _CONV, _FULL], "conv_L_cache": 3},
            **{"block_multiple_of": 4, "block_ffn_dim_multiplier": 1.5, "tie_word_embeddings": True, "norm_eps": 1e-2},
        },
    ),
    FamilyCase(
        "lfm2_bias",
        "lfm2",
        {
            **{"full_attn_idxs": [0, 2], "conv_L_cache": 4, "conv_bias": True, "block_auto_adjust_ff_dim": False},
        },
    ),
    FamilyCase(
        "lfm2_moe",
        "lfm2_moe",
        {
            **{"num_hidden_layers": 4, "layer_types": [_CONV, _FULL, _CONV, _CONV], "num_dense_layers": 1},
            **{"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "routed_scaling_factor": 1.5},
            **{"tie_word_embeddings": True, "norm_eps": 1e-2, "pad_token_id": None},
        },
    ),
    FamilyCase(
        "lfm3",
        "lfm3",
        {
            **{"num_hidden_layers": 5, "head_dim": 16, "conv_L_cache": 7, "sliding_window": WINDOW},
            **{"norm_eps": 1e-2, "rms_norm_eps": 1e-2},
            **{"layer_types": None, "tie_word_embeddings": True, "pad_token_id": None},
        },
    ),
    FamilyCase(
        "lfm3_plain",
        "lfm3",
        {
            **{"head_dim": 8, "layer_types": [_SLIDING, _CONV, _FULL], "sliding_window": WINDOW, "conv_L_cache": 3},
            **{"use_sandwich_norm": False, "use_attention_gate": False, "attention_bias": True, "conv_bias": True},
            "pad_token_id": None,
        },
    ),
    FamilyCase("qwen3_5", "qwen3_5_text", _QWEN_3_5),
    FamilyCase("qwen3_5_moe", "qwen3_5_moe_text", {**_QWEN_3_5, **_QWEN_3_5_EXPERTS, "linear_num_value_heads": 2}),
    FamilyCase("qwen3_next", "qwen3_next", {**_QWEN_3_5, **_QWEN_3_5_EXPERTS, "full_attention_interval": 2}),
    FamilyCase("olmo2", "olmo2", {"pad_token_id": None}),
    FamilyCase("olmo3", "olmo3", {"num_hidden_layers": 4, "sliding_window": WINDOW, "pad_token_id": None}),
    FamilyCase("olmo_hybrid", "olmo_hybrid", {**_OLMO_HYBRID, "rope_parameters": {"rope_theta": None}}),
    FamilyCase(
        "olmo_hybrid_rope",
        "olmo_hybrid",
        {**_OLMO_HYBRID, "layer_types": [_FULL, _LINEAR, _LINEAR], "linear_num_value_heads": 2, "attention_bias": True},
    ),
    FamilyCase("granite", "granite", _GRANITE),
    FamilyCase("granite_moe", "granitemoe", {**_GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3}),
    FamilyCase("granite_4", "granitemoehybrid", {**_GRANITE_4, "position_embedding_type": "rope"}),
    FamilyCase("granite_4_nope", "granitemoehybrid", {**_GRANITE_4, "position_embedding_type": "nope"}),
    FamilyCase(
        "granite_4_hybrid",
        "granitemoehybrid",
        {**_GRANITE_4, **_MAMBA, "layer_types": [_LINEAR, _LINEAR, _FULL, _LINEAR], "num_hidden_layers": 4},
    ),
    FamilyCase(
        "granite_4_experts",
        "granitemoehybrid",
        {
            **{**_GRANITE_4, **_MAMBA, "mamba_n_groups": 1, "mamba_proj_bias": True, "mamba_conv_bias": False},
            **{"layer_types": [_LINEAR, _FULL, _LINEAR], "num_local_experts": 6, "num_experts_per_tok": 3},
        },
    ),
    FamilyCase("bamba", "bamba", {**_MAMBA, "attn_layer_indices": [1], "head_dim": 8, "pad_token_id": None}),
    FamilyCase("falcon_h1", "falcon_h1", {**_FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    FamilyCase(
        "falcon_h1_biases",
        "falcon_h1",
        {
            **{**_FALCON_H1, "mamba_rms_norm": True, "mamba_proj_bias": True, "projectors_bias": True},
            **{"attention_bias": True, "mlp_bias": True, "mamba_n_groups": 1, "mamba_conv_bias": False},
        },
    ),
    FamilyCase("falcon_h1_no_norm", "falcon_h1", {**_FALCON_H1, "head_dim": 16}),
    FamilyCase(
        "nemotron_h", "nemotron_h", {**_NEMOTRON_H, "layers_block_type": [_LINEAR, "mlp", _FULL, "moe", _LINEAR]}
    ),
    FamilyCase(
        "nemotron_h_latent",
        "nemotron_h",
        {
            **{**_NEMOTRON_H, "layers_block_type": ["moe", _FULL, _LINEAR, "mlp"], "moe_latent_size": 20},
            **{"mlp_bias": True, "use_bias": True, "use_conv_bias": False, "norm_topk_prob": False},
        },
    ),
    FamilyCase("phi3", "phi3", {"sliding_window": WINDOW, "pad_token_id": None}),
    FamilyCase("phi4_mini", "phi3", {**_PHI4_MINI, "original_max_position_embeddings": NUM_TOKENS}),
    FamilyCase("phi4_mini_long", "phi3", {**_PHI4_MINI, "original_max_position_embeddings": 16}, max_model_len=48),
    FamilyCase("mixtral", "mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": WINDOW}),
    FamilyCase("qwen3_moe", "qwen3_moe", {**_QWEN_MOE, "norm_topk_prob": True}),
    FamilyCase("qwen3_moe_some", "qwen3_moe", {**_QWEN_MOE, "mlp_only_layers": [1], "norm_topk_prob": False}),
    FamilyCase("gpt_oss", "gpt_oss", {**_GPT_OSS, "layer_types": [_SLIDING, _FULL, _SLIDING]}),
    FamilyCase(
        "snowball",
        "grug_moe",
        {
            **{"head_dim": 16, "num_hidden_layers": 5, "sliding_window": WINDOW, "qk_mult": 1.5, "num_experts": 6},
            **{"num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
            **{"grugmoe_attention_mode": "production", "grugmoe_artifact_schema_version": 1},
        },
    ),
    FamilyCase(
        "hero",
        "grug_moe",
        {
            **{"num_attention_heads": 8, "num_key_value_heads": 4, "local_kv_heads": 4, "global_kv_heads": 2},
            **{"head_dim": 16, "num_hidden_layers": 5, "sliding_window": WINDOW, "qk_mult": 1.5, "num_experts": 6},
            **{"num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20},
            **{"num_shared_experts": 2, "latent_dim": 28, "global_every": 3, "rope_theta": 10_000.0},
            **{"rope_fused": True, "sconv": True, "sconv_kernel": 4, "sconv_sites": ["k", "attn", "mlp"]},
            **{"grugmoe_attention_mode": "production", "grugmoe_artifact_schema_version": 2},
        },
    ),
    FamilyCase("apertus", "apertus", {"hidden_act": "xielu", "pad_token_id": None}),
    FamilyCase(
        "gpt2",
        "gpt2",
        {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "n_inner": 48,
            "activation_function": "gelu_new",
            "scale_attn_by_inverse_layer_idx": True,
            "tie_word_embeddings": True,
        },
    ),
)
# Of a checkpoint whose experts are stored in 4 bits.
MXFP4_CASE = FamilyCase(
    "gpt_oss_mxfp4",
    "gpt_oss",
    {**_GPT_OSS, "intermediate_size": 64, "quantization_config": {"quant_method": "mxfp4"}},
)
