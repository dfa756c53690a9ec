"""Values of `config.json` in the spellings of many years, each a tiny model; needs neither jax nor torch.

`make_saved_configs` has transformers read, run and save them.
"""

from typing import Any

from tests.parity.cases import CASES
from tests.parity.family_cases import FAMILY_CASES, LEVANTER_TYPES

FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW = 8
_GEOMETRY = {
    **{"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "hidden_act": "silu"},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5},
    **{"tie_word_embeddings": False, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2},
}
# In a configuration here: the key is left out.
ABSENT = object()
_EPS = {"rms_norm_eps": ABSENT}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN_MOE = {"head_dim": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_GEMMA = {"tie_word_embeddings": ABSENT, "head_dim": 16}
_GEMMA_3 = {**_GEMMA, "sliding_window": WINDOW}
_GRANITE_4 = {"num_local_experts": 0, "shared_intermediate_size": 40, "mamba_n_heads": 8}
_YARN = {
    **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1},
    "attention_factor": 1.2,
}
_LONG = {"type": "su", "short_factor": [1.0, 1.1, 1.3, 2.0], "long_factor": [1.5, 2.0, 4.0, 5.0]}
_ALTERNATING = {"layer_types": [SLIDING, FULL] * 2, "sliding_window": WINDOW}
_TEXT = {key: value for key, value in _GEOMETRY.items() if key != "tie_word_embeddings"}
_VISION = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"image_size": 16, "patch_size": 4},
}
_QWEN_VISION = {
    **{"hidden_size": 32, "intermediate_size": 48, "depth": 4, "num_heads": 4, "patch_size": 4, "out_hidden_size": 32},
    **{"deepstack_visual_indexes": [1, 2], "num_position_embeddings": 16},
}
_PIXTRAL = {**_VISION, "head_dim": 8, "hidden_act": "gelu"}
_MINISTRAL_3 = {
    **{"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 8},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4},
}
_GEMMA_4 = {
    **{"head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    **{"hidden_size_per_layer_input": 0, "sliding_window": WINDOW, "layer_types": [SLIDING, FULL] * 2},
    **{"vocab_size_per_layer_input": 96, "pad_token_id": 0},
}
_SECTIONS = {"mrope_interleaved": True, "mrope_section": [2, 1, 1]}


def _scaling(**fields: Any) -> dict[str, Any]:
    return {"rope_scaling": fields}


def _parameters(**fields: Any) -> dict[str, Any]:
    return {"rope_parameters": fields}


def _llama_3(**more: Any) -> dict[str, Any]:
    factors = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return _scaling(rope_type="llama3", **factors, original_max_position_embeddings=32) | more


def _qwen_vl(text: dict[str, Any], vision: dict[str, Any] | None = None) -> dict[str, Any]:
    inner = {**_TEXT, "head_dim": 8, "model_type": "qwen3_vl_text", **text}
    ids = {"image_token_id": 91, "vision_start_token_id": 92}
    return {"model_type": "qwen3_vl", "text_config": inner, "vision_config": {**_QWEN_VISION, **(vision or {})}, **ids}


_OF_TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_dynamic": ("llama", {"rope_theta": 5000.0, **_scaling(type="dynamic", factor=2.0)}),
    "llama_dynamic_new": ("llama", _parameters(rope_type="dynamic", factor=2.0, rope_theta=5000.0)),
    "llama_linear_type": ("llama", {"rope_theta": 20_000, **_scaling(type="linear", factor=2.0)}),
    "llama_both_types": ("llama", _scaling(type="linear", rope_type="default", factor=2.0)),
    "llama_default": ("llama", {"rope_theta": 777.0, **_scaling(rope_type="default")}),
    "llama_yarn_outer_context": (
        "llama",
        {
            "original_max_position_embeddings": 16,
            **_scaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
        },
    ),
    "llama_yarn_without_factor": (
        "llama",
        _scaling(rope_type="yarn", factor=None, original_max_position_embeddings=16),
    ),
    "llama_yarn_mscale": (
        "llama",
        _scaling(
            **{"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False},
            original_max_position_embeddings=16,
        ),
    ),
    "llama_both_keys": (
        "llama",
        {
            "rope_theta": 3000.0,
            **_scaling(rope_type="linear", factor=2.0),
            **_parameters(rope_type="linear", factor=5.0, rope_theta=400.0),
        },
    ),
    "llama_inner_theta": (
        "llama",
        {"rope_theta": 3000.0, **_scaling(rope_type="linear", factor=2.0, rope_theta=900.0)},
    ),
    "llama_longrope": (
        "llama",
        _scaling(
            **{"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1, 2, 3, 4]},
            original_max_position_embeddings=48,
        ),
    ),
    "llama_llama3": ("llama", _llama_3(rope_theta=500_000.0)),
    "llama_partial": ("llama", {"partial_rotary_factor": 0.5}),
    "llama_no_kv_heads": ("llama", {"num_key_value_heads": ABSENT}),
    "llama_null_heads": ("llama", {"num_key_value_heads": None, "head_dim": None}),
    "llama_pretraining_tp": ("llama", {"pretraining_tp": 2}),
    "llama_absent": ("llama", {**_EPS, "hidden_act": ABSENT, "tie_word_embeddings": ABSENT}),
    "llama_layer_types": ("llama", _ALTERNATING),
    **{
        f"llama_{name}": ("llama", {"hidden_act": name})
        for name in (
            *("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "gelu_accurate"),
            *("gelu_python_tanh", "swish", "relu", "relu2", "sigmoid", "tanh", "linear"),
        )
    },
    "mistral_absent": ("mistral", _EPS),
    "mistral_window": ("mistral", {"sliding_window": WINDOW}),
    "mistral_biases": ("mistral", {"mlp_bias": True, "attention_bias": True}),
    "mixtral_absent": ("mixtral", {**_EPS, "num_local_experts": 4}),
    "mixtral_num_experts": ("mixtral", {"num_experts": 4, "sliding_window": WINDOW}),
    "qwen2_layer_types": ("qwen2", {"use_sliding_window": True, **_ALTERNATING}),
    "qwen2_window_layers": ("qwen2", {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": WINDOW}),
    "qwen2_yarn": ("qwen2", _scaling(type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "qwen3_absent": ("qwen3", _EPS),
    "qwen3_moe_window": (
        "qwen3_moe",
        {**_QWEN_MOE, "num_experts": 4, "use_sliding_window": True, "max_window_layers": 2, "sliding_window": WINDOW},
    ),
    "qwen3_moe_local": ("qwen3_moe", {**_QWEN_MOE, "num_local_experts": 4, "decoder_sparse_step": 2}),
    "olmo2_absent": ("olmo2", _EPS),
    "olmo3_by_kind": (
        "olmo3",
        {
            "sliding_window": WINDOW,
            **_parameters(
                full_attention={**_YARN, "rope_theta": 500_000.0, "truncate": False},
                sliding_attention={"rope_type": "default", "rope_theta": 10_000.0},
            ),
        },
    ),
    "olmo3_scaling": ("olmo3", {"sliding_window": WINDOW, "rope_theta": 500_000.0, "rope_scaling": _YARN}),
    "olmo3_flat": ("olmo3", {"sliding_window": WINDOW, **_parameters(rope_type="default", rope_theta=500_000.0)}),
    "olmo3_absent": ("olmo3", {"sliding_window": WINDOW}),
    "phi3_yarn": ("phi3", {"original_max_position_embeddings": 48, "rope_scaling": {**_LONG, "type": "yarn"}}),
    "phi3_longrope": ("phi3", {"original_max_position_embeddings": 48, "rope_scaling": {**_LONG, "type": "longrope"}}),
    "phi3_partial": ("phi3", {"partial_rotary_factor": 0.5}),
    "phi3_partial_inside": (
        "phi3",
        _parameters(rope_type="default", rope_theta=400.0, partial_rotary_factor=0.5),
    ),
    "phi3_absent": ("phi3", {**_EPS, "attention_bias": True}),
    "gemma_gelu": ("gemma", {**_GEMMA, "hidden_act": "gelu", "hidden_activation": None}),
    "gemma_hidden_activation": ("gemma", {**_GEMMA, "hidden_act": ABSENT, "hidden_activation": "gelu"}),
    "gemma2_absent": ("gemma2", {**_GEMMA, **_EPS}),
    "gemma2_no_caps": (
        "gemma2",
        {**_GEMMA_3, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3_scaling": (
        "gemma3_text",
        {
            **{**_GEMMA_3, "rope_theta": 1e6, "rope_local_base_freq": 500.0, "sliding_window_pattern": 2},
            **_scaling(rope_type="linear", factor=8.0),
        },
    ),
    "gemma3_by_kind": (
        "gemma3_text",
        {
            **_GEMMA_3,
            **_parameters(
                full_attention={"rope_type": "linear", "factor": 8.0, "rope_theta": 3000.0},
                sliding_attention={"rope_type": "default", "rope_theta": 200.0},
            ),
        },
    ),
    "gemma3_one_kind": (
        "gemma3_text",
        {**_GEMMA_3, **_parameters(full_attention={"rope_type": "linear", "factor": 8.0, "rope_theta": 3000.0})},
    ),
    "gemma4_absent": (
        "gemma4_text",
        {**_EPS, "head_dim": 16, "hidden_size_per_layer_input": 0, "tie_word_embeddings": ABSENT},
    ),
    "gemma4_rotations": (
        "gemma4_text",
        {
            **_GEMMA_4,
            **_parameters(
                full_attention={"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 3000.0},
                sliding_attention={"rope_type": "default", "rope_theta": 200.0},
            ),
        },
    ),
    "gpt_oss_absent": ("gpt_oss", {**_EPS, **_EXPERTS, "head_dim": 16, "sliding_window": WINDOW}),
    "gpt_oss_num_experts": (
        "gpt_oss",
        {
            **{"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": WINDOW},
            "attention_bias": False,
        },
    ),
    "granite_absent": ("granite", {**_EPS, "mlp_bias": True}),
    "granite_moe_absent": ("granitemoe", {**_EPS, "num_local_experts": 4}),
    "granite_4_full_attention": (
        "granitemoehybrid",
        {**_GRANITE_4, "layer_types": [FULL] * 4, "position_embedding_type": "rope"},
    ),
    "granite_4_block_types": ("granitemoehybrid", {**_GRANITE_4, "layers_block_type": ["attention"] * 4}),
    "apertus_absent": ("apertus", {**_EPS, "hidden_act": ABSENT}),
    "apertus_theta": ("apertus", {"hidden_act": ABSENT, "rope_theta": 5000.0}),
    "apertus_default": ("apertus", {"hidden_act": ABSENT, "rope_theta": 5000.0, **_scaling(rope_type="default")}),
    "exaone4_absent": ("exaone4", {**_EPS, "sliding_window": WINDOW}),
    "exaone4_letters": (
        "exaone4",
        {"sliding_window": WINDOW, "sliding_window_pattern": "LLLG", "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    ),
    "exaone4_no_window": (
        "exaone4",
        {"sliding_window": None, "sliding_window_pattern": None, "layer_types": [FULL] * 4, **_llama_3()},
    ),
    "glm_absent": ("glm", {**_EPS, "head_dim": 8, "attention_bias": ABSENT}),
    "glm_whole_heads": ("glm", {"head_dim": 8, "partial_rotary_factor": 1.0, "attention_bias": False}),
    "glm4_inside": (
        "glm4",
        {"head_dim": 16, **_parameters(rope_type="default", rope_theta=400.0, partial_rotary_factor=0.25)},
    ),
    "glm4_yarn": ("glm4", {"head_dim": 16, **_scaling(type="yarn", factor=4.0, original_max_position_embeddings=16)}),
    "ministral_absent": ("ministral", {**_EPS, "head_dim": 8}),
    "ministral3_absent": ("ministral3", {**_EPS, "head_dim": 8, "max_position_embeddings": 262_144}),
    "ministral3_linear": (
        "ministral3",
        {
            "head_dim": 8,
            **_parameters(
                **{"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0, "llama_4_scaling_beta": 0.3},
                original_max_position_embeddings=8,
            ),
        },
    ),
    "smollm3_absent": ("smollm3", {**_EPS, "tie_word_embeddings": ABSENT}),
    "smollm3_layer_types": (
        "smollm3",
        {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": [SLIDING] * 4},
    ),
}
SPELLINGS: dict[str, dict[str, Any]] = {
    **{
        name: {
            key: value
            for key, value in {**_GEOMETRY, "model_type": model_type, **changes}.items()
            if value is not ABSENT
        }
        for name, (model_type, changes) in _OF_TEXT.items()
    },
    "gpt2_other_names": {
        **{"model_type": "gpt2", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "max_position_embeddings": 64},
    },
    "gpt2_gelu_fast": {
        **{"model_type": "gpt2", "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        **{"n_ctx": 64, "activation_function": "gelu_fast"},
    },
    "gemma3_images": {
        **{"model_type": "gemma3", "mm_tokens_per_image": 4, "image_token_id": 91, "boi_token_id": 92},
        "text_config": {**_TEXT, "head_dim": 16, "sliding_window": WINDOW, "model_type": "gemma3_text"},
        **{"vision_config": {**_VISION, "model_type": "siglip_vision_model"}, "eoi_token_id": 93},
    },
    "gemma4_whole": {
        **{"model_type": "gemma4", "vision_config": None, "audio_config": None},
        "text_config": {**_TEXT, **_GEMMA_4, "model_type": "gemma4_text"},
    },
    "gemma4_unified": {
        **{"model_type": "gemma4_unified", "vision_config": None, "audio_config": None},
        "text_config": {**_TEXT, **_GEMMA_4, "model_type": "gemma4_unified_text"},
    },
    "idefics3": {
        **{"model_type": "idefics3", "image_token_id": 91, "scale_factor": 2},
        **{"text_config": {**_TEXT, "model_type": "llama"}, "vision_config": _VISION},
    },
    "smolvlm": {
        **{"model_type": "smolvlm", "image_token_id": 91, "scale_factor": 2, "vision_config": _VISION},
        "text_config": {**_TEXT, "model_type": "llama", "mlp_bias": True, **_scaling(type="linear", factor=2.0)},
    },
    "mistral3": {
        **{"model_type": "mistral3", "image_token_index": 91, "vision_config": {**_PIXTRAL, "model_type": "pixtral"}},
        "text_config": {**_TEXT, "model_type": "mistral", "head_dim": 8, "sliding_window": None, "rope_theta": 700.0},
    },
    "mistral3_ministral3": {
        **{"model_type": "mistral3", "image_token_index": 91, "vision_config": {**_PIXTRAL, "model_type": "pixtral"}},
        "text_config": {**_TEXT, "model_type": "ministral3", "head_dim": 8, **_parameters(**_MINISTRAL_3)},
        "tie_word_embeddings": False,
    },
    "qwen3_vl_scaling": _qwen_vl({"rope_theta": 7000, **_scaling(**_SECTIONS, rope_type="default")}),
    "qwen3_vl_parameters": _qwen_vl(
        {"attention_bias": True, **_parameters(**_SECTIONS, rope_type="default", rope_theta=300.0)},
        {"model_type": "qwen3_vl"},
    ),
    "qwen3_vl_yarn": _qwen_vl(
        _parameters(
            **{**_SECTIONS, "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
            rope_theta=300.0,
        )
    ),
}
_NULLS = ("pad_token_id", "sliding_window")
_GPT2_ONLY = ("n_embd", "n_layer", "n_head", "n_positions", "n_inner", "activation_function")


def family_values() -> dict[str, dict[str, Any]]:
    """Return the values of the families' own cases, by name, of those that transformers has."""
    found = {}
    for case in (*CASES, *FAMILY_CASES):
        values = {key: value for key, value in case.hub_config.items() if value is not None or key in _NULLS}
        if case.model_type == "gpt2":  # whose keys have other names, which would be set twice
            kept = ("vocab_size", "model_type", "scale_attn_by_inverse_layer_idx", "tie_word_embeddings", *_GPT2_ONLY)
            values = {key: value for key, value in values.items() if key in kept}
        if case.model_type not in LEVANTER_TYPES:
            found[case.name] = values
    return found
