"""Decoders that were trained to encode: Qwen3-Embedding, e5-mistral, gte-Qwen2, EuroBERT, and rerankers like them.

Their configuration is the decoder's own. Attention is causal, unless the configuration or the name of the class says
that a token sees both sides.
Source: Zhang et al. 2025, arXiv:2506.05176 (Qwen3-Embedding); Wang et al. 2023, arXiv:2401.00368 (e5-mistral);
transformers 5.24 `masking_utils.py` (`is_causal`), `models/eurobert/modeling_eurobert.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.errors import UnsupportedModel
from service.kernels.windows import Sight
from service.models.config import HubConfig
from service.models.description import Experts
from service.models.encoders.config import VectorConfig
from service.models.encoders.rotary.config import RotaryConfig, RotaryLayer
from service.models.registry import read_config as read_decoder_config

# Families that never generate, and the decoder whose geometry each has.
TWO_SIDED = {"eurobert": "llama", "llama_bidirec": "llama"}
# Families whose models in transformers 5.24 read `use_bidirectional_attention`.
HAVE_KEY = ("gemma3_text",)
# Classes of code in checkpoints whose only difference is that a token sees both sides: LLM2Vec's, and Nvidia's.
# Source: BehnamGhader et al. 2024, arXiv:2404.05961; llm2vec `models/bidirectional_mistral.py`; vLLM `models/llama.py`.
TWO_SIDED_CLASS = re.compile(r"[A-Z]\w*?\d?(Bi|Encoder|Bidirectional)(Model|ForMNTP|ForSequenceClassification)")
# Classes of transformers itself.
OWN_CLASS = re.compile(r"(Llama|Mistral|Qwen2|Qwen3|EuroBert)(Model|For\w+)")


def sees_both_sides(values: Mapping[str, Any]) -> bool:
    """Return whether a token of a decoder's text sees the ones after it too."""
    return (
        values.get("is_causal") is False
        or values.get("model_type") in TWO_SIDED
        or (bool(values.get("use_bidirectional_attention")) and values.get("model_type") in HAVE_KEY)
        or any(TWO_SIDED_CLASS.fullmatch(str(name)) for name in values.get("architectures") or ())
    )


def read_config(config: HubConfig, vector: VectorConfig) -> RotaryConfig:
    """Read a `config.json` of a decoder family that is served as an encoder too.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("quantization_config")
    is_causal, classes = not sees_both_sides(config.values), config.values.get("architectures") or ()
    unknown = [name for name in classes if not OWN_CLASS.fullmatch(str(name))]
    if unknown and is_causal:
        reason = f"architectures names {unknown[0]!r}, code that may compute something else and is never run"
        raise config.refuse(f"{reason}. If it only lets a token see both sides, set is_causal to false.")
    model_type = str(config.values["model_type"])
    geometry = TWO_SIDED.get(model_type, model_type)
    decoder = read_decoder_config(config.uri, {**config.values, "model_type": geometry, "is_causal": None})
    if any(layer.state is not None for layer in decoder.layers):
        raise UnsupportedModel(config.uri, "config.json: layers that keep a state are not served in an encoder.")
    first, heads = decoder.layers[0], decoder.heads
    mlp = first.feed_forward
    if isinstance(mlp, Experts):
        raise UnsupportedModel(config.uri, "config.json: a mixture of experts is not served as an encoder.")
    assert heads.rotation is not None
    assert mlp is not None, "a layer without a state has both branches"
    return RotaryConfig(
        model_type=model_type,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        mlp_size=mlp.size,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        context_len=decoder.context_len,
        norm=decoder.final_norm,
        activation=mlp.activation,
        attention_scale=heads.scale,
        layers=tuple(
            RotaryLayer(heads.rotation, _sight(attention.window, is_causal=is_causal))
            for attention in decoder.attentions
        ),
        names=replace(decoder.names, prefix=""),
        vector=vector,
        has_qkv_bias=heads.has_bias,
        has_output_bias=heads.has_output_bias,
        has_mlp_bias=mlp.has_bias,
    )


def _sight(window: int | None, *, is_causal: bool) -> Sight:
    """Return what a token sees: a causal window counts the token itself, one to both sides does not."""
    return Sight(is_causal, None if window is None else window - is_causal)
