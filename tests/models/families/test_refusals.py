"""Configurations that contradict themselves, or ask for what is not served, are refused with file, key and limit."""

import json
import re
from typing import Any

import pytest

from service.errors import UnsupportedModel
from service.models.registry import REFUSED, read_config
from tests.parity.cases import CASES
from tests.parity.family_cases import FAMILY_CASES

CONFIGS: dict[str, dict[str, Any]] = {
    case.name: json.loads(json.dumps(case.hub_config)) for case in (*CASES, *FAMILY_CASES)
}


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("llama_one_head_each", {"num_key_value_heads": 3}, "not a multiple of num_key_value_heads = 3"),
        (
            "llama_one_head_each",
            {"num_attention_heads": 5, "num_key_value_heads": 5},
            "hidden_size = 32 is not a multi",
        ),
        ("llama_one_head_each", {"head_dim": 7}, "7 of head_dim = 7 dimensions are rotated"),
        ("llama_one_head_each", {"hidden_act": "mish"}, "hidden_act = 'mish' is not served; only "),
        ("llama_one_head_each", {"rms_norm_eps": 0}, "rms_norm_eps is 0, which should be a positive number"),
        ("mistral_window", {"sliding_window": 0}, "sliding_window is 0, which should be a positive integer"),
        ("qwen2_window", {"layer_types": ["full_attention"]}, "for each of 3 layers"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers must hold a 0 or a 1 for each of 4 layers"),
        ("smollm3", {"no_rope_layers": [1, 0, 2, 1]}, "no_rope_layers must hold a 0 or a 1"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True is not served"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0"),
        ("gemma2", {"final_logit_softcapping": float("nan")}, "final_logit_softcapping is nan"),
        ("gemma2", {"sliding_window": 0}, "sliding_window is 0"),
        ("gemma3", {"layer_types": ["full_attention"] * 5}, "for each of 4 layers"),
        ("gemma3", {"layer_types": ["full_attention", "chunked_attention"] * 2}, "full_attention or sliding_attention"),
        ("gemma4_shared", {"num_kv_shared_layers": 7}, "num_kv_shared_layers is 7, which must be from 0 to 6"),
        ("gemma4_shared", {"num_kv_shared_layers": 6}, "none of the 1 layers before has the kind full_attention"),
        ("gemma4_shared", {"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1"),
        ("olmo2", {"clip_qkv": 8.0}, "clip_qkv = 8.0 is not served"),
        ("granite", {"residual_multiplier": 0}, "residual_multiplier is 0"),
        ("granite_4", {"num_local_experts": -1}, "num_local_experts is -1"),
        ("granite_4", {"layer_types": ["attention", "mamba", "conv"]}, "for each of 3 layers"),
        ("granite_4", {"layer_types": ["mamba"] * 3}, "names no full_attention"),
        ("granite_4", {"position_embedding_type": "alibi"}, "position_embedding_type = 'alibi' is not served"),
        ("phi4_mini", {"partial_rotary_factor": 0.65}, "5 of head_dim = 8 dimensions are rotated"),
        ("phi4_mini", {"partial_rotary_factor": 2}, "16 of head_dim = 8 dimensions are rotated"),
        ("mixtral", {"num_experts_per_tok": 7}, "num_experts_per_tok = 7 is more than num_local_experts = 6"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0, which should be a positive integer"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok = 9 is more than num_experts = 8"),
        ("qwen3_moe_some", {"mlp_only_layers": [2]}, "mlp_only_layers must hold numbers of layers below 2"),
        ("snowball", {"grugmoe_attention_mode": "long"}, "grugmoe_attention_mode = 'long' is not served"),
        ("snowball", {"grugmoe_artifact_schema_version": 3}, "grugmoe_artifact_schema_version = 3 is not served"),
        ("snowball", {"disable_long_rope": False}, "disable_long_rope = False is not served"),
        ("snowball", {"head_dim": 6}, "head_dim = 6 is not a multiple of 4"),
        ("snowball", {"num_key_value_heads": 3}, "4 attention heads are not a multiple of 3 key-value heads"),
        ("snowball", {"num_experts_per_tok": 7}, "num_experts_per_tok = 7 is more than num_experts = 6"),
        ("snowball", {"sliding_window": 0}, "sliding_window is 0"),
        ("hero", {"rope_theta": None}, "rope_theta is None"),
        ("hero", {"tie_word_embeddings": True}, "tie_word_embeddings = True is not served"),
        ("hero", {"local_kv_heads": 3}, "local_kv_heads = 3 does not divide 4 stored key-value heads"),
        ("hero", {"local_kv_heads": 2}, "4 key-value heads are stored, and 2 are used at most"),
        ("hero", {"global_kv_heads": None}, "local_kv_heads and global_kv_heads must be given together"),
        ("hero", {"head_dim": 6}, "head_dim = 6 is not a multiple of 4"),
        ("hero", {"sconv_kernel": 1}, "a convolution of one tap keeps no state"),
        ("hero", {"sconv_kernel": 0}, "sconv_kernel is 0"),
        ("hero", {"sconv_sites": ["k", "q"]}, r"sconv_sites is \['k', 'q'\]"),
        ("hero", {"latent_dim": -1}, "latent_dim is -1"),
        ("hero", {"num_shared_experts": 0}, "num_shared_experts is 0"),
        ("hero", {"global_every": 0}, "global_every is 0"),
        ("gpt_oss", {"swiglu_limit": 6.0}, "swiglu_limit = 6.0 is not served; only 7.0"),
        ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act = 'gelu' is not served"),
        ("gpt_oss", {"num_experts_per_tok": 7}, "num_experts_per_tok = 7 is more than num_local_experts = 6"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "for each of 3 layers"),
        ("gpt_oss", {"sliding_window": 0}, "sliding_window is 0"),
        ("gpt2", {"n_head": 5}, "n_embd = 32 is not a multiple of n_head = 5"),
        ("gpt2", {"activation_function": "snake"}, "activation_function = 'snake' is not served"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention = True is not served"),
    ],
)
def test_a_contradiction_is_refused_with_its_key_and_limit(name, changes, named):
    with pytest.raises(UnsupportedModel, match=r"^m: config\.json: ") as error:
        read_config("m", CONFIGS[name] | changes)
    assert error.match(named)


def test_a_list_of_factors_of_the_wrong_length_is_refused():
    config = CONFIGS["phi4_mini"]
    scaling = {**config["rope_scaling"], "short_factor": [1.0, 1.0]}
    with pytest.raises(UnsupportedModel, match="short_factor must hold a positive number for each of 3 pairs"):
        read_config("m", {**config, "rope_scaling": scaling})


@pytest.mark.parametrize(("model_type", "reason"), REFUSED.items())
def test_a_model_with_another_kind_of_cache_is_refused_with_the_reason(model_type, reason):
    with pytest.raises(UnsupportedModel, match=f"model_type '{model_type}' is not served: {re.escape(reason)}"):
        read_config("m", {"model_type": model_type})


def test_every_other_recurrence_and_cache_has_a_reason():
    others = {
        *("jamba", "mamba", "falcon_mamba", "zamba2", "zamba", "recurrent_gemma", "rwkv", "xlstm", "minimax"),
        *("kimi_linear", "deepseek_v2", "deepseek_v3", "mistral4", "kimi_k25", "glm4_moe_lite", "deepseek_v32"),
        *("deepseek_v4", "glm_moe_dsa", "minimax_m3_vl", "gemma3n", "llama4", "gpt2_hyena", "gemma4_assistant"),
    }
    assert others <= REFUSED.keys()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"conv_L_cache": 1}, "keeps no state"),
        ({"conv_L_cache": 0}, "conv_L_cache is 0"),
        ({"layer_types": ["conv"] * 5}, "names no full_attention"),
        ({"layer_types": ["conv", "mamba", "conv", "conv", "full_attention"]}, "must name full_attention or conv"),
        ({"full_attn_idxs": [7], "layer_types": None}, "full_attn_idxs must hold numbers of layers below 5"),
    ],
)
def test_a_convolution_of_lfm2_that_is_none_is_refused_by_name(values, reason):
    case = next(case for case in FAMILY_CASES if case.name == "lfm2")
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", {**case.hub_config, **values})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"conv_L_cache": 1}, "keeps no state"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"layer_types": ["conv"] * 5}, "names no full_attention"),
        ({"layer_types": ["conv", "full_attention"]}, "for each of 5 layers"),
    ],
)
def test_layers_of_lfm3_that_are_none_are_refused_by_name(values, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", {**CONFIGS["lfm3"], **values})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"layer_types": None}, "layer_types is missing"),
        ({"num_dense_layers": 5}, "num_dense_layers is 5, which must be from 0 to 4"),
        ({"num_dense_layers": -1}, "num_dense_layers is -1"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok = 7 is more than num_experts = 6"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor is 0"),
    ],
)
def test_experts_of_lfm2_that_are_none_are_refused_by_name(values, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", {**CONFIGS["lfm2_moe"], **values})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"linear_num_value_heads": 5}, "linear_num_value_heads = 5 is not a multiple of linear_num_key_heads = 2"),
        ({"linear_num_key_heads": 0}, "linear_num_key_heads is 0"),
        ({"linear_key_head_dim": -8}, "linear_key_head_dim is -8"),
        ({"linear_value_head_dim": 0}, "linear_value_head_dim is 0"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim is 0"),
        ({"linear_conv_kernel_dim": 1}, "keeps no state"),
        ({"attn_output_gate": False}, "attn_output_gate = False is not served"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu' is not served"),
        ({"layer_types": ["linear_attention"] * 4}, "names no full_attention"),
        ({"layer_types": ["linear_attention"] * 3}, "for each of 4 layers"),
    ],
)
def test_heads_of_qwen_3_5_that_contradict_each_other_are_refused_by_name(values, reason):
    case = next(case for case in FAMILY_CASES if case.name == "qwen3_5")
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", {**case.hub_config, **values})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"linear_num_value_heads": 5}, "linear_num_value_heads = 5 is not a multiple of linear_num_key_heads = 2"),
        ({"layer_types": ["linear_attention"] * 3}, "names no full_attention"),
        ({"linear_conv_kernel_dim": 1}, "keeps no state"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not served"),
    ],
)
def test_heads_of_olmo_hybrid_that_contradict_each_other_are_refused_by_name(values, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", {**CONFIGS["olmo_hybrid"], **values})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"mamba_n_heads": 7}, "mamba_n_heads = 7 does not divide the width of the recurrent layers, 64"),
        ({"mamba_d_head": 7}, "mamba_d_head = 7 times mamba_n_heads = 8 is not the width"),
        ({"mamba_n_groups": 3}, "mamba_n_groups = 3 does not divide the 8 heads"),
        ({"mamba_n_heads": 0}, "mamba_n_heads is 0"),
        ({"mamba_d_state": -1}, "mamba_d_state is -1"),
        ({"mamba_d_conv": 1}, "mamba_d_conv is 1: a convolution of one tap keeps no state"),
        ({"mamba_d_conv": 0}, "mamba_d_conv is 0"),
        ({"mamba_expand": 0}, "mamba_expand is 0"),
        ({"time_step_limit": [0.2, 0.1]}, "time_step_limit is .*, which should be the least and the most step"),
        ({"time_step_limit": [0.2]}, "time_step_limit is "),
        ({"time_step_limit": [0.0, "much"]}, "time_step_limit is "),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not served"),
    ],
)
def test_heads_of_mamba_2_that_contradict_each_other_are_refused_by_name(values, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", {**CONFIGS["granite_4_hybrid"], **values})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"ssm_multipliers": [1.0] * 4}, "ssm_multipliers is .*, which should hold 5 numbers"),
        ({"mlp_multipliers": 2}, "mlp_multipliers is 2, which should hold 2 numbers"),
        ({"mlp_multipliers": [1.0, 0]}, r"mlp_multipliers\[1\] is 0, which should be a positive number"),
        ({"key_multiplier": -1}, "key_multiplier is -1"),
        ({"mamba_d_ssm": 0}, "mamba_d_ssm is 0"),
        ({"mamba_d_ssm": 50}, "mamba_n_heads = 8 does not divide the width of the recurrent layers, 50"),
    ],
)
def test_multipliers_and_widths_of_falcon_h1_are_refused_by_name(values, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", {**CONFIGS["falcon_h1"], **values})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"layers_block_type": ["mamba", "attention", "conv"]},
            r"layers_block_type must name one of linear_attention \(M\)",
        ),
        ({"layers_block_type": None}, "layers_block_type must name one of"),
        ({"layers_block_type": None, "hybrid_override_pattern": "M*X"}, "hybrid_override_pattern must name one of"),
        ({"layers_block_type": ["mamba", "mlp"]}, "names no full_attention"),
        ({"n_groups": 4}, "n_groups = 4 does not divide the 6 heads"),
        ({"conv_kernel": 1}, "conv_kernel is 1: a convolution of one tap keeps no state"),
        ({"ssm_state_size": 0}, "ssm_state_size is 0"),
        ({"mamba_hidden_act": "relu"}, "mamba_hidden_act = 'relu' is not served"),
        ({"n_group": 2}, "n_group and topk_group differ"),
        ({"moe_latent_size": 0}, "moe_latent_size is 0"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok = 7 is more than n_routed_experts = 6"),
    ],
)
def test_layers_of_nemotron_h_that_are_none_are_refused_by_name(values, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        read_config("m", {**CONFIGS["nemotron_h"], **values})


def test_layers_of_nemotron_h_are_those_of_its_pattern_and_of_former_names():
    config = CONFIGS["nemotron_h"]
    pattern = {**config, "layers_block_type": None, "hybrid_override_pattern": "M-*EM", "num_hidden_layers": 52}
    former = {**config, "layers_block_type": ["mamba", "mlp", "attention", "moe", "mamba"], "n_groups": 9}
    assert read_config("m", pattern) == read_config("m", {**former, "mamba_n_groups": 2}) == read_config("m", config)


def test_layers_of_bamba_that_attend_are_named():
    for attending in (None, [], [3], "all"):
        with pytest.raises(UnsupportedModel, match="attn_layer_indices must hold numbers of layers below 3"):
            read_config("m", {**CONFIGS["bamba"], "attn_layer_indices": attending})


@pytest.mark.parametrize("limit", [{"__float__": "Infinity"}, "Infinity", float("inf")])
def test_a_step_without_a_limit_is_read_however_it_is_written(limit):
    config = read_config("m", {**CONFIGS["granite_4_hybrid"], "time_step_limit": [0.05, limit]})
    assert config.layers[0].state.most_step == float("inf")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("qwen3_5", "mamba_ssm_dtype"),
        ("granite_4_hybrid", "mamba_ssm_dtype"),
        ("nemotron_h", "mamba_ssm_cache_dtype"),
    ],
)
def test_states_are_kept_in_float32_whatever_a_file_says(name, key, caplog):
    config = read_config("m", {**CONFIGS[name], key: "bfloat16"})
    assert config == read_config("m", {**CONFIGS[name], key: "float32"})
    assert caplog.text.count("states are kept in float32") == 1


def test_code_of_a_checkpoint_is_never_run():
    values = {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}}
    with pytest.raises(
        UnsupportedModel,
        match=r"model_type 'mine' is not served, and code in a checkpoint is never run. Served: apertus, ",
    ):
        read_config("m", values)
