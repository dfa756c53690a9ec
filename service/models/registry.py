"""The served model families, by the `model_type` of their `config.json`; no jax."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from service.errors import UnsupportedModel
from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.eagle3 import is_eagle3
from service.models.families.hub_keys import resolved

# Each model_type, and its module of the package of families.
FAMILIES = {
    "apertus": "apertus",
    "bamba": "bamba",
    "exaone4": "exaone4",
    "falcon_h1": "falcon_h1",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3_text",
    **dict.fromkeys(("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"), "gemma4"),
    "glm": "glm4",
    "glm4": "glm4",
    "gpt2": "gpt2",
    "gpt_oss": "gpt_oss",
    "granite": "granite",
    "granitemoe": "granite",
    "granitemoehybrid": "granite",
    "grug_moe": "grug_moe",
    "idefics3": "idefics3",
    **dict.fromkeys(("lfm2", "lfm2_moe"), "lfm2"),
    "lfm3": "lfm3",
    "llama": "llama",
    "ministral": "mistral",
    "ministral3": "mistral",
    "mistral": "mistral",
    "mistral3": "mistral3",
    "mixtral": "mixtral",
    "nemotron_h": "nemotron_h",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "olmo_hybrid": "olmo_hybrid",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"), "qwen3_5"),
    "qwen3_moe": "qwen3_moe",
    "qwen3_vl": "qwen3_vl",
    "smollm3": "smollm3",
    "smolvlm": "idefics3",
    "whisper": "whisper",
}
# In the values of a configuration, the model of a run of Levanter.
RUN = "levanter"
# In the values of a configuration: whether the files have a head besides the embeddings, whatever the file says.
OWN_HEAD = "levserve_own_head"
# In the values of a configuration: False if the files have nothing that reads images, whatever the file says.
READS_IMAGES = "levserve_reads_images"
_MAMBA = "its recurrent layers keep a state, by another recurrence (Mamba-1) than those that are served"
_LATENT = "its attention caches one latent vector for all heads, which no attention kernel here takes"
_INDEXED = "its attention chooses positions by an index, and no cache here holds one"
_OTHER = "its layers keep a state by a recurrence of their own, which is not served"
_DRAFTS = "drafts for another model and is none by itself"
REFUSED = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "mistral4", "kimi_k25", "glm4_moe_lite"), _LATENT),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4", "glm_moe_dsa", "minimax_m3_vl"), _INDEXED),
    **dict.fromkeys(("falcon_mamba", "jamba", "mamba"), _MAMBA),
    **dict.fromkeys(("recurrent_gemma", "rwkv", "xlstm", "minimax"), _OTHER),
    "mamba2": "it has no layers of attention, without which a model is not served",
    **dict.fromkeys(("zamba", "zamba2"), "its layers of attention are shared, each use with an adapter of its own"),
    **dict.fromkeys(("gemma4_assistant", "qwen3_5_mtp", "qwen3_next_mtp"), f"it {_DRAFTS}"),
    "gemma3n": "its activations are predicted between four streams",
    "gpt2_hyena": "its convolutions see the whole text, and no cache exists for them",
    "kimi_linear": "its states decay by channel and its attention caches one latent vector for all heads",
    "llama4": "its attention sees chunks of positions",
}


def read_config(uri: str, values: Mapping[str, Any], max_model_len: int | None = None) -> DecoderConfig:
    """Read a `config.json` of any served family, or the model of a run of Levanter.

    Args:
        uri: the checkpoint, for messages.
        values: its content.
        max_model_len: the most tokens that the operator asks for; None for what the model was made for.

    Raises:
        UnsupportedModel: the family, or a feature of this model, is not served.
    """
    if RUN in values:
        run = {**values[RUN], "vocab_size": values.get("vocab_size")}
        return import_module("service.models.families.levanter").read_config(HubConfig(uri, run, max_model_len))
    model_type = values.get("model_type")
    if is_eagle3(values):
        reason = (
            f"config.json: architectures is {values.get('architectures')}, a head, which {_DRAFTS}: DRAFT_MODEL_URI."
        )
        raise UnsupportedModel(uri, reason)
    if model_type not in FAMILIES:
        raise UnsupportedModel(uri, f"config.json: model_type {model_type!r} is not served{_reason(values)}.")
    for part in (values, values.get("text_config")):
        # Source: transformers `masking_utils.py` (create_causal_mask), of every family.
        if isinstance(part, Mapping) and part.get("is_causal") is False:
            reason = "a token sees those after it, so the model writes no text, and its family is not served otherwise"
            raise UnsupportedModel(uri, f"config.json: is_causal = False is not served of {model_type}: {reason}.")
    module = import_module(f"service.models.families.{FAMILIES[model_type]}")
    config = module.read_config(resolved(HubConfig(uri, values, max_model_len)))
    if values.get(READS_IMAGES) is False:
        config = replace(config, image_encoder=None)
    own = values.get(OWN_HEAD)
    return config if own is None else replace(config, has_tied_embeddings=not own)


def _reason(values: Mapping[str, Any]) -> str:
    """Return the rest of a sentence about a model that is not served."""
    model_type = str(values.get("model_type"))
    if model_type in REFUSED:
        return f": {REFUSED[model_type]}"
    return f", and code in a checkpoint is never run. Served: {', '.join(FAMILIES)}"
