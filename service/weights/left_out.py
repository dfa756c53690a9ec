"""Tensors that lie beside those of a model: which change no result and are left out, and what the others are."""

import re
from collections.abc import Iterable
from typing import NamedTuple


class LeftOutKind(NamedTuple):
    """A kind of tensors, recognized by their names in the bare model."""

    pattern: re.Pattern[str]
    what: str


# Inside or beside the layers of a model. The sources name what writes them.
HARMLESS = tuple(
    LeftOutKind(re.compile(pattern), what)
    for pattern, what in (
        # transformers' buffers of several ages, which every reader computes: rotations, causal masks, positions.
        # Source: transformers `_keys_to_ignore_on_load_unexpected` of its models.
        (r"(^|\.)rotary(_pos)?_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)$", "tables of rotations"),
        (r"(^|\.)rope\.freqs$", "tables of rotations"),
        (r"(^|\.)(attn|attention)\.(bias|masked_bias)$", "masks of attention"),
        (r"(^|\.)embeddings\.(position_ids|token_type_ids)$", "position buffers"),
        (r"(^|\.)position_ids$", "position buffers"),
        (r"(^|\.)encoder\.embed_positions\.weight$", "sinusoidal positions"),
        (r"(^|\.)act_fn\.(beta|eps)$", "constants of xIELU"),
        (r"^t2d$", "tables of the tokens that a head drafts"),  # the reverse of d2t
        # Source: speculators `models/eagle3/core.py`: what training has of the model that is drafted for.
        (r"^verifier_(lm_head|norm)\.", "parts of the model that is drafted for"),
        (r"(^|\.)num_batches_tracked$|^n_averaged$", "counters of training"),
        # Scales of an 8-bit cache. Source: vLLM `model_executor/layers/quantization/kv_cache.py`; compressed-tensors.
        (r"\.(k|v|q|kv|prob)_(scale|zero_point)$", "scales of a cache in 8 bits"),
        (
            r"\.(k|v|kv)_(proj\.output_scale|cache_scale|cache_scaling_factor|zero_point)$",
            "scales of a cache in 8 bits",
        ),
        # Activations are quantized by token or not at all. Source: AutoFP8, llm-compressor, fbgemm, ModelOpt and
        # transformers `integrations/finegrained_fp8.py` (names of tensors).
        (
            r"(\.|_proj_)(input|act|activation|output)_(scale|global_scale|zero_point|scale_ub)$|\.azp_adj$",
            "scales of static activations",
        ),
        # Source: peft `utils/other.py` (ModulesToSaveWrapper): what `modules_to_save` replaces.
        (r"(^|\.)original_module\.", "modules that PEFT's trained copies replace"),
        # BERT's head of sentences, and SigLIP's, which makes one vector of a picture.
        (r"(^|\.)pooler\.dense\.(weight|bias)$", "poolers"),
        (r"vision_(tower|model)\.(vision_model\.)?head\.", "heads of vision models"),
    )
)
# Beside the layers: modules that the served model does not run.
BESIDE = tuple(
    LeftOutKind(re.compile(pattern), what)
    for pattern, what in (
        # Source: transformers, the heads of `modeling_bert.py`, `modeling_roberta.py`, `modeling_modernbert.py`,
        # `modeling_electra.py`, `modeling_distilbert.py` and of classes that end with For...
        (
            r"^(cls|lm_head|generator_lm_head|generator_predictions|discriminator_predictions)\.",
            "heads of pre-training",
        ),
        (r"^(vocab_transform|vocab_layer_norm|vocab_projector|mlm_head|nsp_head|pooler)\.", "heads of pre-training"),
        (r"^(decoder|head)\.(weight|bias|dense\.(weight|bias)|norm\.(weight|bias))$", "heads of pre-training"),
        (
            r"^(qa_outputs|classifier|pre_classifier|score|dropout|summary|multiple_choice_head)\.",
            "heads of other tasks",
        ),
        (r"^(regression|classification|ranking|pooling)_head\.", "heads of other tasks"),
        # Source: trl `models/modeling_value_head.py`; OpenRLHF, verl, DeepSpeed-Chat.
        (r"^(v_head|value_head|v_head2|reward_head|critic_head|q_heads?|target_q_heads?)\.", "value heads"),
        # Source: transformers `_keys_to_ignore_on_load_unexpected` (mtp) of its models; DeepSeek-V3, Qwen3-Next, MiMo.
        (r"(^|\.)mtp(_layers|_block|_head)?(\.|_)|^(nextn|medusa_head|eagle)", "layers that predict further tokens"),
        # The parts of a multimodal model that a text never runs through.
        (r"^(visual|vision_tower|vision_model|vision_encoder|vision_proj\w*|image_newline)(\.|$)", "vision models"),
        (r"^(multi_modal_projector|mm_projector|connector|embed_vision|embed_audio|audio_\w+)(\.|$)", "media models"),
        (r"^(talker|token2wav|code2wav|code_predictor)\.", "speech models"),
        (r"^(optimizer|optim|lr_scheduler|scheduler|loss|criterion|exp_avg\w*|ema\w*)(\.|$)", "states of training"),
    )
)
OTHER_HEADS = ("heads of other tasks", "value heads")
# In one of the layers after the last that config.json counts, these make it a layer that predicts further tokens.
MTP = re.compile(r"\.(eh_proj|enorm|hnorm|shared_head|embed_tokens|token_layernorm|hidden_layernorm)\.")
# AutoGPTQ saves them of all layers. Source: vLLM `models/llama.py` (load_weights)
ZERO_BIASES = "biases that are zero, in a model without biases"
UNUSED = "parts of layers that the model does not run"
NEXT_TOKENS = "layers that predict further tokens"
ANOTHER_MODEL = "tensors beside the model"

# Names by which other formats are known, what they are, and what to do.
FOREIGN = tuple(
    LeftOutKind(re.compile(pattern), what)
    for pattern, what in (
        (
            r"\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(\.|$)",
            "of an adapter that is not merged. Call merge_and_unload() of PEFT and save again, or set ADAPTER_URI to "
            "the adapter and MODEL_URI to its base",
        ),
        (
            r"(^|\.)_?flat_param",
            "flat parameters of FSDP. Save with StateDictType.FULL_STATE_DICT, or merge them with accelerate "
            "merge-weights",
        ),
        (
            r"(^|\.)tok_embeddings\.weight$|\.attention\.w[qkvo]\.weight$|\.feed_forward\.w[123]\.weight$",
            "in the format of Meta's and Mistral's own code (consolidated). Serve the files of the same model that "
            "transformers saved",
        ),
        (
            r"(^|\.)blk\.\d+\.|^token_embd\.",
            "those of GGUF. Serve the files of the same model that transformers saved",
        ),
        (
            r"\.self_attention\.(linear_qkv|query_key_value|linear_proj)\.|\.mlp\.linear_fc[12]\.weight$",
            "those of Megatron or NeMo. Export the model to Hugging Face's format",
        ),
        (
            r"\.(absmax|nested_absmax|quant_map|quant_state\.\w+|SCB)$",
            "of a quantization with bitsandbytes, which is not served. Serve the model in bfloat16, or as AWQ, GPTQ or "
            "compressed-tensors",
        ),
        (
            r"\.(q_weight|q_scale|q_invperm|trellis|suh|svh|W_q|codebooks)$",
            "of a quantization that is not served (EXL2, EXL3, HQQ or AQLM). Serve the model in bfloat16, or as AWQ, "
            "GPTQ or compressed-tensors",
        ),
        (
            r"\.(qweight|qzeros|g_idx)$",
            "of AWQ or GPTQ, of which config.json has no fitting quantization_config. Copy it from the quantized model",
        ),
        (
            r"\.weight_(packed|scale|scale_inv|zero_point|shape|global_scale|g_idx)$|\.input_global_scale$",
            "of a quantized model, of which config.json has no fitting quantization_config. Copy it from the quantized "
            "model",
        ),
        (r"\.(biases|scales)$", "of a quantization by MLX, which is not served. Serve the model in bfloat16"),
    )
)


def harmless(name: str) -> str | None:
    """Return what a tensor is that changes no result, wherever it lies; None for others."""
    return _first(HARMLESS, name)


def beside(name: str) -> str | None:
    """Return what a tensor is of a module beside the layers that the model does not run; None for others."""
    return _first(BESIDE, name)


def foreign(names: Iterable[str]) -> tuple[str, str] | None:
    """Return a tensor of the first format that is not served as it lies, and what it is; None if there is none."""
    names = list(names)
    return next(((name, kind.what) for kind in FOREIGN for name in names if kind.pattern.search(name)), None)


def _first(kinds: tuple[LeftOutKind, ...], name: str) -> str | None:
    return next((kind.what for kind in kinds if kind.pattern.search(name)), None)
