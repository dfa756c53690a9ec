"""Export of a Qwen 3.5 checkpoint to GGUF: the names and the numbers that llama.cpp has for its tensors.

It runs in llama.cpp's environment and needs only numpy and gguf.
Source: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py (Qwen3_5TextModel, Qwen3NextModel)
"""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gguf import GGUFWriter

ARCHITECTURE = "qwen35"
MODULES = {
    **{"linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate"},
    **{"linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d"},
    **{"linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out"},
    **{"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"},
    **{"self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"},
    **{"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"},
}
WHOLE = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def add_sizes(writer: "GGUFWriter", config: dict[str, Any]) -> None:
    """Add what this family has besides what a Llama has."""
    rope = config["rope_parameters"]
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])


def converted(name: str, tensor: np.ndarray) -> tuple[str, np.ndarray]:
    """Return a tensor's name and content there. There is one value head for each key head."""
    if name.endswith("norm.weight") and "linear_attn" not in name:
        tensor = tensor + np.float32(1)
    if name in OUTSIDE:
        return OUTSIDE[name], tensor
    _, _, layer, *rest = name.split(".")
    inner = ".".join(rest)
    if inner in WHOLE:
        return f"blk.{layer}.{WHOLE[inner]}", -np.exp(tensor) if inner.endswith("A_log") else tensor
    module = inner.removesuffix(".weight")
    return f"blk.{layer}.{MODULES[module]}.weight", tensor[:, 0] if module.endswith("conv1d") else tensor
