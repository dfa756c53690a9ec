"""Defaults of the keys of `config.json` by family, as in transformers, and the keys that change no result; no jax.

A saved file leaves out what equals the default of its day, an older one what did not exist yet, and a part such as
`text_config` nearly everything. So a reader never guesses: it reads a file that `resolved` has completed, and each
default is written here once.
Source: transformers 5.24 `models/*/configuration_*.py` (each class's fields and `attribute_map`); Levanter
`models/snowball.py` for grug_moe.
"""

import fnmatch
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.models.config import HubConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FamilyKeys:
    """The keys of one model_type.

    A default of None is null in a file: heads of equal parts of the hidden size (`head_dim`), as many heads of keys as
    of queries (`num_key_value_heads`), no window, no cap, or the family's rule for layers.
    """

    defaults: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of keys, each with the one above
    unused: tuple[str, ...] = ()  # keys that transformers writes for this family and that change no result


_DECODER = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_BIASES = {"attention_bias": False, "mlp_bias": False}
_MISTRAL = {**_DECODER, "intermediate_size": 14_336, "num_key_value_heads": 8, "max_position_embeddings": 131_072}
_GLM = {
    **_DECODER,
    **{"vocab_size": 151_552, "intermediate_size": 13_696, "num_hidden_layers": 40, "num_key_value_heads": 2},
    **{"head_dim": 128, "max_position_embeddings": 131_072, "rms_norm_eps": 1.5625e-7, "attention_bias": True},
}
_OLMO = {**_DECODER, "vocab_size": 50_304, "rms_norm_eps": 1e-5, "attention_bias": False, "clip_qkv": None}
_QWEN = {
    **_DECODER,
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "use_sliding_window": False,
    "sliding_window": 4096,
}
_QWEN_LAYERS = {"max_window_layers": 28, "layer_types": None}
_GEMMA = {
    **_DECODER,
    "vocab_size": 256_000,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "use_bidirectional_attention": None,
}
_GEMMA_2 = {
    **{key: value for key, value in _GEMMA.items() if key != "hidden_act"},
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA_4 = {
    **{key: value for key, value in _GEMMA_2.items() if key not in ("query_pre_attn_scalar", "attn_logit_softcapping")},
    **{"vocab_size": 262_144, "num_hidden_layers": 30, "max_position_embeddings": 131_072},
    **{"final_logit_softcapping": None, "attention_k_eq_v": False, "num_kv_shared_layers": 0, "global_head_dim": 512},
    **{"num_global_key_value_heads": None, "per_layer_config": None, "use_double_wide_mlp": False},
}
_GEMMA_4_UNUSED = (
    *("num_experts", "top_k_experts", "moe_intermediate_size", "mtp_per_layer_config", "is_causal", "hidden_act"),
)
_GEMMA_4_WHOLE = FamilyKeys(
    {
        **{"tie_word_embeddings": True, "image_token_id": 258_880, "boi_token_id": 255_999, "eoi_token_id": 258_882},
        **{"vision_soft_tokens_per_image": 280},
    },
    unused=("text_config", "vision_config", "audio_config", "*_token_index"),
)
_GRANITE = {
    **_DECODER,
    "attention_bias": False,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}
_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
_SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_IDEFICS_VISION = FamilyKeys(
    {**_SIGLIP, "hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}, unused=("tie_word_embeddings",)
)
_IDEFICS = FamilyKeys(
    {"image_token_id": 128_257, "scale_factor": 2, "tie_word_embeddings": False},
    unused=("text_config", "vision_config", "pixel_shuffle_factor", "use_reentrant_checkpointing"),
)
_QWEN_3_5 = {
    **_DECODER,
    **{"vocab_size": 248_320, "intermediate_size": 12_288, "num_attention_heads": 16, "num_key_value_heads": 4},
    **{"head_dim": 256, "max_position_embeddings": 32_768, "attention_bias": False, "layer_types": None},
    **{"full_attention_interval": None, "attn_output_gate": None, "mamba_ssm_dtype": None},
    **{"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128},
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 32},
}
_QWEN_3_5_EXPERTS = {
    **{key: value for key, value in _QWEN_3_5.items() if key != "intermediate_size"},
    **{"hidden_size": 2048, "num_hidden_layers": 40, "num_key_value_heads": 2, "moe_intermediate_size": 512},
    **{"shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256},
}
_QWEN_3_5_WHOLE = FamilyKeys(
    {"tie_word_embeddings": False, "image_token_id": 248_056}, unused=("text_config", "vision_config")
)
_QWEN_VISION = FamilyKeys(
    {
        **{"depth": 27, "hidden_size": 1152, "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 4304},
        **{"num_heads": 16, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
        **{"out_hidden_size": 3584, "num_position_embeddings": 2304},
    },
    {"num_attention_heads": "num_heads", "num_hidden_layers": "depth"},
    unused=("tie_word_embeddings", "deepstack_visual_indexes"),
)
_NOT_OF_NEMOTRON = ("rms_norm_eps", "hidden_act", "num_hidden_layers")
_ROUTER = ("router_aux_loss_coef", "router_jitter_noise", "output_router_logits")
_MAMBA = {
    **{"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": None, "mamba_d_conv": 4},
    **{"mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False, "time_step_limit": None},
}
_MAMBA_UNUSED = ("mamba_chunk_size", "mamba_dt_*", "time_step_*", "normalization_function", "init_method")

# By the model_type of a file, or of a part of one.
FAMILY_KEYS: Mapping[str, FamilyKeys] = {
    "apertus": FamilyKeys(
        {
            **_DECODER,
            **{"vocab_size": 131_072, "intermediate_size": 14_336, "hidden_act": "xielu", "rms_norm_eps": 1e-5},
            **{"max_position_embeddings": 65_536, "attention_bias": False},
        },
        unused=("mlp_bias", "post_norm", "qk_norm"),
    ),
    "bamba": FamilyKeys(
        {
            **_DECODER,
            **_BIASES,
            **{"vocab_size": 128_000, "intermediate_size": 14_336, "num_key_value_heads": 8, "rms_norm_eps": 1e-5},
            **{"max_position_embeddings": 262_144, "attn_layer_indices": None, **_MAMBA},
        },
        unused=(*_MAMBA_UNUSED, "num_logits_to_keep", "z_loss_coefficient", "layers_block_type", "layer_types"),
    ),
    "exaone4": FamilyKeys(
        {
            **_DECODER,
            **{"vocab_size": 102_400, "intermediate_size": 16_384, "num_key_value_heads": 32, "rms_norm_eps": 1e-5},
            **{"sliding_window": 4096, "sliding_window_pattern": 4, "layer_types": None},
        }
    ),
    "falcon_h1": FamilyKeys(
        {
            **_DECODER,
            **_BIASES,
            **_MAMBA,
            **{"vocab_size": 128_000, "intermediate_size": 14_336, "num_key_value_heads": 8, "rms_norm_eps": 1e-5},
            **{"max_position_embeddings": 8192, "mamba_d_ssm": 1024, "mamba_norm_before_gate": True},
            **{"mamba_rms_norm": False, "projectors_bias": False, "lm_head_multiplier": 1.0, "key_multiplier": 1.0},
            **{"embedding_multiplier": 1.0, "mlp_multipliers": None, "ssm_multipliers": None, "ssm_in_multiplier": 1.0},
            **{"ssm_out_multiplier": 1.0, "attention_in_multiplier": 1.0, "attention_out_multiplier": 1.0},
        },
        unused=(*_MAMBA_UNUSED, "num_logits_to_keep", "layers_block_type", "layer_types", "mamba_use_mlp"),
    ),
    "gemma": FamilyKeys(
        {
            **_GEMMA,
            **{"hidden_size": 3072, "intermediate_size": 24_576, "num_hidden_layers": 28, "num_attention_heads": 16},
            **{"num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh"},
        },
        unused=("hidden_activation",),  # which `hidden_act` has replaced
    ),
    "gemma2": FamilyKeys(_GEMMA_2, unused=("hidden_act", "cache_implementation")),
    "gemma3": FamilyKeys(
        {
            **{"mm_tokens_per_image": 256, "boi_token_index": 255_999, "eoi_token_index": 256_000},
            **{"image_token_index": 262_144, "tie_word_embeddings": True},
        },
        {f"{name}_token_id": f"{name}_token_index" for name in ("boi", "eoi", "image")},
        unused=("text_config", "vision_config"),
    ),
    "gemma3_text": FamilyKeys(
        {
            **_GEMMA_2,
            **{"vocab_size": 262_208, "max_position_embeddings": 131_072, "sliding_window_pattern": 6},
            **{"attn_logit_softcapping": None, "final_logit_softcapping": None},
        },
        unused=("hidden_act", "cache_implementation", "_sliding_window_pattern"),
    ),
    **dict.fromkeys(("gemma4", "gemma4_unified"), _GEMMA_4_WHOLE),
    "gemma4_text": FamilyKeys(
        {
            **{**_GEMMA_4, "enable_moe_block": False, "sliding_window": 512},
            **{"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144},
        },
        unused=_GEMMA_4_UNUSED,
    ),
    "gemma4_vision": FamilyKeys(
        {
            **{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12},
            **{"num_key_value_heads": 12, "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh"},
            **{"rms_norm_eps": 1e-6, "attention_bias": False, "pooling_kernel_size": 3, "patch_size": 16},
            **{"position_embedding_size": 10_240, "use_clipped_linears": False, "standardize": False},
        },
        unused=("max_position_embeddings", "global_head_dim", "default_output_length", "tie_word_embeddings"),
    ),
    "gemma4_unified_text": FamilyKeys(
        {**_GEMMA_4, "max_position_embeddings": 262_144, "sliding_window": 1024},
        unused=(*_GEMMA_4_UNUSED, "enable_moe_block", "hidden_size_per_layer_input", "vocab_size_per_layer_input"),
    ),
    "glm": FamilyKeys(_GLM),
    "glm4": FamilyKeys(_GLM),
    "gpt2": FamilyKeys(
        {
            **{"vocab_size": 50_257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None},
            **{"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
            **{"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
        },
        {
            **{"hidden_size": "n_embd", "max_position_embeddings": "n_positions"},
            **{"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        },
        unused=("n_ctx", "reorder_and_upcast_attn", "summary_*", "task_specific_params"),
    ),
    "gpt_oss": FamilyKeys(
        {
            **_DECODER,
            **{"vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36},
            **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
            **{"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "layer_types": None, "attention_bias": True},
            **{"num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
        },
        {"num_experts": "num_local_experts"},
        unused=(*_ROUTER, "initial_context_length", "experts_per_token"),
    ),
    "granite": FamilyKeys({**_GRANITE, "mlp_bias": False}),
    "granitemoe": FamilyKeys({**_GRANITE, **_EXPERTS}, unused=(*_ROUTER, "position_embedding_type")),
    "granitemoehybrid": FamilyKeys(
        {
            **_GRANITE,
            **{"num_local_experts": 8, "shared_intermediate_size": 1024, "position_embedding_type": None},
            **{"layer_types": None, "num_experts_per_tok": 2, **_MAMBA},
        },
        {"layers_block_type": "layer_types"},
        unused=(*_ROUTER, *_MAMBA_UNUSED),
    ),
    "idefics3": _IDEFICS,
    "idefics3_vision": _IDEFICS_VISION,
    "lfm2": FamilyKeys(
        {
            **{key: value for key, value in _DECODER.items() if key not in ("rms_norm_eps", "hidden_act")},
            **{"vocab_size": 65_536, "hidden_size": 2560, "intermediate_size": 12_288, "num_key_value_heads": 8},
            **{"max_position_embeddings": 128_000, "norm_eps": 1e-5, "tie_word_embeddings": True, "conv_bias": False},
            **{"conv_L_cache": 3, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0},
            **{"block_auto_adjust_ff_dim": True, "full_attn_idxs": None, "layer_types": None},
        },
        unused=(
            *(
                "tie_embedding",
                "block_ff_dim",
                "block_dim",
                "block_mlp_init_scale",
                "block_norm_eps",
                "block_out_init_scale",
            ),
            *(
                "block_use_*",
                "conv_dim*",
                "conv_use_xavier_init",
                "num_heads",
                "use_pos_enc",
                "theta",
                "rms_norm_eps",
                "hidden_act",
            ),
        ),
    ),
    "lfm2_moe": FamilyKeys(
        {
            **{key: value for key, value in _DECODER.items() if key not in ("rms_norm_eps", "hidden_act")},
            **{"vocab_size": 65_536, "hidden_size": 2048, "intermediate_size": 7168, "num_key_value_heads": 8},
            **{"max_position_embeddings": 128_000, "norm_eps": 1e-5, "tie_word_embeddings": True, "conv_bias": False},
            **{"conv_L_cache": 3, "layer_types": None, "num_dense_layers": 2, "moe_intermediate_size": 1792},
            **{"num_experts": 32, "num_experts_per_tok": 4, "use_expert_bias": True, "routed_scaling_factor": 1.0},
            "norm_topk_prob": True,
        },
        unused=(*_ROUTER, "tie_embedding", "theta", "rms_norm_eps", "hidden_act"),
    ),
    "lfm3": FamilyKeys(
        {
            **{key: value for key, value in _DECODER.items() if key not in ("rms_norm_eps", "hidden_act")},
            **{"vocab_size": 128_000, "hidden_size": 2048, "intermediate_size": 7680, "num_hidden_layers": 24},
            **{"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "norm_eps": 1e-5},
            **{"max_position_embeddings": 128_000, "tie_word_embeddings": True, "attention_bias": False},
            **{"conv_bias": False, "conv_L_cache": 7, "layer_types": None, "sliding_window": 256},
            **{"use_sandwich_norm": True, "use_attention_gate": True},
        },
        {"rms_norm_eps": "norm_eps"},
        unused=("hidden_act", "theta"),
    ),
    "llama": FamilyKeys({**_DECODER, **_BIASES}, unused=("pretraining_tp",)),
    "ministral": FamilyKeys({**_MISTRAL, "sliding_window": 4096, "layer_types": None}),
    "ministral3": FamilyKeys(
        {
            **_MISTRAL,
            **{"vocab_size": 131_072, "num_hidden_layers": 34, "head_dim": 128, "max_position_embeddings": 262_144},
            **{"rms_norm_eps": 1e-5, "sliding_window": None},
        },
        unused=("layer_types",),
    ),
    "mistral": FamilyKeys({**_MISTRAL, "sliding_window": 4096}),
    "mistral3": FamilyKeys(
        {
            **{"tie_word_embeddings": True, "image_token_index": 10, "projector_hidden_act": "gelu"},
            **{"spatial_merge_size": 2, "vision_feature_layer": -1, "multimodal_projector_bias": False},
        },
        {"image_token_id": "image_token_index"},
        unused=("text_config", "vision_config"),
    ),
    "mixtral": FamilyKeys(
        {**_MISTRAL, **_EXPERTS, "rms_norm_eps": 1e-5, "sliding_window": None},
        {"num_experts": "num_local_experts"},
        unused=_ROUTER,
    ),
    "modernbert": FamilyKeys(
        {
            **{"vocab_size": 50_368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22},
            **{"num_attention_heads": 12, "hidden_activation": "gelu", "max_position_embeddings": 8192},
            **{"norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "mlp_bias": False, "layer_types": None},
            **{"local_attention": 128, "global_attn_every_n_layers": 3, "classifier_pooling": "cls"},
            **{"classifier_bias": False, "classifier_activation": "gelu"},
        },
        unused=(
            *("decoder_bias", "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"),
            *("sparse_pred*", "embedding_dropout", "tie_word_embeddings", "layer_norm_eps", "position_embedding_type"),
            *("gradient_checkpointing",),
        ),
    ),
    "nemotron_h": FamilyKeys(
        {
            **{key: value for key, value in _DECODER.items() if key not in _NOT_OF_NEMOTRON},
            **{"vocab_size": 131_072, "intermediate_size": 21_504, "num_key_value_heads": 8, "head_dim": 128},
            **{"max_position_embeddings": 4096, "layer_norm_epsilon": 1e-5, "layers_block_type": None},
            **{"hybrid_override_pattern": None, "mlp_hidden_act": "relu2", "mlp_bias": False, "use_bias": False},
            **{"mamba_num_heads": 128, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "n_groups": 8},
            **{"ssm_state_size": 128, "conv_kernel": 4, "use_conv_bias": True, "time_step_min": 0.001},
            **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688},
            **{"moe_shared_expert_intermediate_size": 7688, "moe_latent_size": None, "routed_scaling_factor": 1.0},
            **{"n_group": 1, "topk_group": 1, "norm_topk_prob": True},
        },
        {"layer_types": "layers_block_type", "num_local_experts": "n_routed_experts"},
        unused=(
            *(*_ROUTER, *_MAMBA_UNUSED, "mamba_*", "chunk_size", "expand", "num_logits_to_keep", "use_mamba_kernels"),
            *("attention_bias", "sliding_window", "num_hidden_layers", "n_shared_experts", "moe_shared_expert_overlap"),
            *("mtp_*", "num_nextn_predict_layers", "residual_in_fp32", "rescale_prenorm_residual", "hidden_act"),
            *("rms_norm_eps", "norm_eps"),
        ),
    ),
    "olmo2": FamilyKeys(_OLMO),
    "olmo3": FamilyKeys({**_OLMO, "sliding_window": 4096, "layer_types": None}),
    "olmo_hybrid": FamilyKeys(
        {
            **_DECODER,
            **{"vocab_size": 100_352, "hidden_size": 3840, "num_attention_heads": 30, "attention_bias": False},
            **{"max_position_embeddings": 65_536, "layer_types": None, "linear_conv_kernel_dim": 4},
            **{"linear_num_key_heads": None, "linear_num_value_heads": None, "linear_key_head_dim": None},
            **{"linear_value_head_dim": None, "linear_allow_neg_eigval": True},
        },
        unused=("linear_a_log_*", "linear_dt_*"),
    ),
    "phi3": FamilyKeys(
        {
            **_DECODER,
            **{"vocab_size": 32_064, "hidden_size": 3072, "intermediate_size": 8192, "sliding_window": None},
            **{"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
        },
        unused=("attention_bias", "lm_head_bias"),
    ),
    "pixtral": FamilyKeys(
        {
            **{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
            **{"num_channels": 3, "patch_size": 16, "hidden_act": "gelu"},
        },
        unused=("image_size", "head_dim", "vocab_size", "tie_word_embeddings"),
    ),
    "qwen2": FamilyKeys({**_QWEN, **_QWEN_LAYERS}),
    "qwen3": FamilyKeys({**_QWEN, **_QWEN_LAYERS, "head_dim": 128, "attention_bias": False}),
    "qwen3_moe": FamilyKeys(
        {
            **_QWEN,
            **{"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4},
            **{"attention_bias": False, "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts": 128},
            **{"num_experts_per_tok": 8, "norm_topk_prob": False, "mlp_only_layers": None},
        },
        {"num_local_experts": "num_experts"},
        unused=(*_ROUTER, "max_window_layers"),
    ),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), _QWEN_3_5_WHOLE),
    **dict.fromkeys(("qwen3_5_vision", "qwen3_5_moe_vision"), _QWEN_VISION),
    "qwen3_5_text": FamilyKeys(_QWEN_3_5, unused=("mtp_*", "mlp_only_layers")),
    "qwen3_5_moe_text": FamilyKeys(
        _QWEN_3_5_EXPERTS, {"num_local_experts": "num_experts"}, unused=(*_ROUTER, "mtp_*", "intermediate_size")
    ),
    "qwen3_next": FamilyKeys(
        {
            **_QWEN_3_5_EXPERTS,
            **{"vocab_size": 151_936, "num_hidden_layers": 48, "num_experts_per_tok": 10, "num_experts": 512},
            **{"decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": None},
        },
        {"num_local_experts": "num_experts"},
        unused=(*_ROUTER, "intermediate_size"),
    ),
    "qwen3_vl": FamilyKeys(
        {"image_token_id": 151_655, "tie_word_embeddings": False}, unused=("text_config", "vision_config")
    ),
    "qwen3_vl_text": FamilyKeys(
        {
            **_DECODER,
            **{"vocab_size": 151_936, "intermediate_size": 22_016, "num_key_value_heads": 32, "head_dim": 128},
            **{"max_position_embeddings": 128_000, "attention_bias": False},
        }
    ),
    "qwen3_vl_vision": FamilyKeys(
        {**_QWEN_VISION.defaults, "deepstack_visual_indexes": [8, 16, 24]},
        _QWEN_VISION.aliases,
        unused=("tie_word_embeddings",),
    ),
    "siglip_vision_model": FamilyKeys(_SIGLIP, unused=("vision_use_head", "tie_word_embeddings")),
    "smollm3": FamilyKeys(
        {
            **_DECODER,
            **{"vocab_size": 128_256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16},
            **{"num_key_value_heads": 4, "max_position_embeddings": 32_768, "tie_word_embeddings": True, **_BIASES},
            **{"use_sliding_window": False, "sliding_window": None, "layer_types": None},
            **{"no_rope_layers": None, "no_rope_layer_interval": 4},
        },
        unused=("pretraining_tp", "max_window_layers"),
    ),
    "smolvlm": _IDEFICS,
    "smolvlm_vision": _IDEFICS_VISION,
    "whisper": FamilyKeys(
        {
            **{"vocab_size": 51_865, "d_model": 384, "activation_function": "gelu", "scale_embedding": False},
            **{"encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536, "num_mel_bins": 80},
            **{"decoder_layers": 4, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536},
            **{"max_source_positions": 1500, "max_target_positions": 448, "tie_word_embeddings": True},
        },
        {"hidden_size": "d_model"},
        unused=(
            *("encoder_layerdrop", "decoder_layerdrop", "init_std", "mask_*", "median_filter_width", "suppress_tokens"),
            *("begin_suppress_tokens", "forced_decoder_ids", "classifier_proj_size", "use_weighted_layer_sum"),
            *("apply_spec_augment", "num_hidden_layers", "is_encoder_decoder", "alignment_heads", "lang_ids"),
            *("suppress_ids", "suppress_ids_begin", "max_length"),
        ),
    ),
}
# Patterns of keys that change no result in any family: of training, of other readers, and of generation, for which
# `generation_config.json` is read; and those that other parts of the service read.
SILENT_KEYS = (
    *("architectures", "auto_map", "model_type", "transformers_version", "_*", "name_or_path", "torchscript"),
    *("dtype", "torch_dtype", "use_bfloat16", "tf_legacy_loss", "*dropout*", "*pdrop*", "initializer_*", "use_cache"),
    *("return_dict", "output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate"),
    *("is_encoder_decoder", "is_decoder", "add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder"),
    *("chunk_size_feed_forward", "pruned_heads", "prefix", "problem_type", "id2label", "label2id", "num_labels"),
    *("finetuning_task", "task_specific_params", "tokenizer_class", "*_token_id", "attn_implementation"),
    *("bad_words_ids", "begin_suppress_tokens", "suppress_tokens", "forced_*", "do_sample", "early_stopping"),
    *("diversity_penalty", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "length_penalty"),
    *("max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_beam*", "num_return_sequences"),
    *("remove_invalid_values", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p"),
    *("quantization_config", "unsloth_*", "use_return_dict", "gradient_checkpointing", "matryoshka_dimensions"),
    *("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "global_rope_theta"),
    *("local_rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "sentence_transformers"),
    *("sbert_ce_default_activation_function", "is_matryoshka", "levserve_*"),
)


# Of these null is a value of its own, and of all others nothing.
_NULLABLE = (
    *("num_key_value_heads", "head_dim", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    *("layer_types", "n_inner", "position_embedding_type"),
)
# The model_type of each part of a file, where the part does not say.
PART_TYPES: Mapping[str, Mapping[str, str]] = {
    "gemma3": {"text_config": "gemma3_text", "vision_config": "siglip_vision_model"},
    "idefics3": {"text_config": "llama", "vision_config": "idefics3_vision"},
    "smolvlm": {"text_config": "llama", "vision_config": "smolvlm_vision"},
    "gemma4": {"vision_config": "gemma4_vision"},
    "mistral3": {"vision_config": "pixtral"},
    "qwen3_5": {"text_config": "qwen3_5_text", "vision_config": "qwen3_5_vision"},
    "qwen3_5_moe": {"text_config": "qwen3_5_moe_text", "vision_config": "qwen3_5_moe_vision"},
    "qwen3_vl": {"text_config": "qwen3_vl_text", "vision_config": "qwen3_vl_vision"},
}
# What older files call a part.
FORMER_PART_TYPES = {
    "idefics3_vision": ("idefics3",),
    "smolvlm_vision": ("smolvlm", "idefics3", "idefics3_vision"),
    "qwen3_5_vision": ("qwen3_5",),
    "qwen3_5_moe_vision": ("qwen3_5_moe", "qwen3_5_vision"),
    "qwen3_vl_vision": ("qwen3_vl",),
}


def resolved(config: HubConfig, model_type: str | None = None) -> HubConfig:
    """Return a file, or a part of one, under the names and with the defaults of its family.

    Args:
        config: as it is written.
        model_type: of a part whose own may be missing; None for the file's own.
    """
    name = str(model_type or config.values.get("model_type"))
    if name not in FAMILY_KEYS:
        return config
    keys, values = FAMILY_KEYS[name], dict(config.values)
    for other, key in keys.aliases.items():
        if values.get(other) is not None:
            values.setdefault(key, values[other])
    for key, default in keys.defaults.items():
        if key not in values or (values[key] is None and key not in _NULLABLE):
            values[key] = default
    return HubConfig(config.uri, {**values, "model_type": name}, config.max_model_len)


def log_unknown_keys(uri: str, values: Mapping[str, Any]) -> None:
    """Name the keys that no reader of the family knows, as those of a release to come, in one line of the log."""
    if keys := unknown_keys(values):
        logger.info("config.json has keys that are not known here and change nothing", extra={"uri": uri, "keys": keys})


def unknown_keys(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of a `config.json` that no reader of its family knows; those of parts follow the part's name."""
    keys = FAMILY_KEYS.get(str(values.get("model_type")))
    if keys is None:
        return ()
    known = {*keys.defaults, *keys.aliases}
    patterns = (*keys.unused, *SILENT_KEYS)
    found = [key for key in values if key not in known and not any(fnmatch.fnmatchcase(key, p) for p in patterns)]
    for part, model_type in _part_types(values):
        inner = {**values[part], "model_type": model_type}
        found += [f"{part}.{key}" for key in unknown_keys(inner)]
    return tuple(found)


def _part_types(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    types = PART_TYPES.get(str(values.get("model_type")), {})
    return [(part, model_type) for part, model_type in types.items() if isinstance(values.get(part), Mapping)]


def resolved_part(config: HubConfig, part: str) -> HubConfig:
    """Return a part of a file with the defaults of its own family.

    Raises:
        UnsupportedModel: it is no object, or of another family than the one that is served.
    """
    inner, model_type = config.part(part), PART_TYPES[str(config.values["model_type"])][part]
    inner.refuse_unless("model_type", model_type, *FORMER_PART_TYPES.get(model_type, ()))
    return resolved(inner, model_type)
