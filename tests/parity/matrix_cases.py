"""One tiny model of each family, of whose configuration nothing is neutral; needs neither jax nor torch.

Keys are spelled as releases of transformers 4 spell them, which 5 reads too.
"""

from typing import Any

from tests.parity.saved_cases import SPELLINGS, family_values

_FAMILIES = family_values()
_LLAMA_3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 32,
}
_TYPE = {"type": "linear", "factor": 2.0}  # the one spelling that 4.40 takes
_LINEAR = {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}}
_YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}


def _case(name: str, **changes: Any) -> dict[str, Any]:
    values = {**(SPELLINGS.get(name) or _FAMILIES[name]), **changes}
    return {key: value for key, value in values.items() if value is not None or key == "pad_token_id"}


# By name: the family's name in a file of 24 families, and the values of its `config.json`.
FAMILIES: dict[str, dict[str, Any]] = {
    "apertus": _case("apertus_theta"),
    "gemma": _case("gemma_gelu", rope_theta=700.0, hidden_act="gelu_pytorch_tanh"),
    "gemma2": _case("gemma2", pad_token_id=None, hidden_activation="gelu_pytorch_tanh"),
    "gemma3": _case("gemma3_images"),
    "gemma3_text": _case("gemma3_scaling", query_pre_attn_scalar=24),
    "gpt2": _case("gpt2", pad_token_id=None),
    "gpt_oss": _case("gpt_oss_num_experts", num_experts=None, num_local_experts=4, attention_bias=True),
    "granite": _case("granite", attention_bias=True, rope_theta=600.0, **_LINEAR),
    "granitemoe": _case("granite_moe", rope_theta=600.0),
    "granitemoehybrid": _case("granite_4"),
    "idefics3": _case("idefics3"),
    "llama": _case("llama_grouped_heads", attention_bias=True, mlp_bias=True, rope_theta=500.0, rope_scaling=_TYPE),
    "llama_3": _case("llama_grouped_heads", rope_theta=123.0, rope_scaling=_LLAMA_3),
    "mistral": _case("mistral_window", rope_theta=321.0),
    "mixtral": _case("mixtral", rope_theta=321.0),
    "olmo2": _case("olmo2", rope_theta=321.0, attention_bias=True),
    "olmo3": _case("olmo3", rope_theta=500_000.0),
    "phi3": _case("phi3_longrope"),
    "qwen2": _case("qwen2_window_layers", rope_theta=321.0),
    "qwen3": _case("qwen3", rope_theta=321.0, attention_bias=True, **_YARN),
    "qwen3_moe": _case("qwen3_moe_some", rope_theta=321.0),
    "qwen3_vl": _case("qwen3_vl_scaling"),
    "smollm3": _case("smollm3", rope_theta=321.0),
    "smolvlm": _case("smolvlm"),
}


def tied(values: dict[str, Any], *, is_tied: bool) -> dict[str, Any]:
    """Return a configuration that says whether the head is the table of embeddings, of the whole and of its text."""
    changed = {**values, "tie_word_embeddings": is_tied}
    if "text_config" in values:
        changed["text_config"] = {**values["text_config"], "tie_word_embeddings": is_tied}
    return changed


def of_age(values: dict[str, Any], release: str) -> dict[str, Any]:
    """Return a configuration without what a release does not know, or does otherwise than all later ones.

    4.40 has windows that are one token longer, and Llama without biases in its feed-forward.
    """
    if release != "4.40":
        return values
    later = {"use_sliding_window": False, "sliding_window": None} if "sliding_window" in values else {}
    return {key: value for key, value in {**values, **later}.items() if key != "mlp_bias"}


CASES = {
    f"{name}-{'tied' if is_tied else 'own'}": tied(values, is_tied=is_tied)
    for name, values in FAMILIES.items()
    for is_tied in (True, False)
}
