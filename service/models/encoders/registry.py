"""The served encoder families, by the `model_type` of their `config.json`; no jax."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from service.models.config import HubConfig
from service.models.encoders.classification import DECODERS, is_reranker, score_config
from service.models.encoders.config import EncoderConfig, Pooling, VectorConfig
from service.models.encoders.rotary.config import RotaryConfig
from service.models.encoders.rotary.llama import TWO_SIDED, sees_both_sides
from service.models.encoders.rotary.weights import rotary_weight_specs
from service.models.encoders.sentence import MODULES, read_sentence_vector
from service.models.encoders.token_heads import read_token_heads
from service.models.encoders.token_scores import scores_by_tokens, token_score_config
from service.models.encoders.weights import encoder_weight_specs
from service.models.families.hub_keys import resolved
from service.models.weight_spec import WeightSpec

type AnyEncoderConfig = EncoderConfig | RotaryConfig

# Each model_type and its module.
ENCODER_FAMILIES = {
    "bert": "bert",
    "camembert": "xlm_roberta",
    "distilbert": "distilbert",
    "gemma3_text": "rotary.gemma3",
    "modernbert": "rotary.modernbert",
    "mpnet": "mpnet",
    "roberta": "xlm_roberta",
    "xlm-roberta": "xlm_roberta",
}
# They generate text, unless the checkpoint says that it was trained to encode.
DECODER_FAMILIES = dict.fromkeys((*DECODERS, *TWO_SIDED), "rotary.llama")
# The classes of transformers that have no head, so that they cannot generate.
BARE_CLASSES = ("Gemma3TextModel", "LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
# Encoders whose architecture generates text too, unless it attends to both sides.
ALSO_DECODERS = ("gemma3_text",)


def is_encoder(values: Mapping[str, Any], sentence_files: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is an encoder's.

    Args:
        values: the content of its `config.json`.
        sentence_files: its files of sentence-transformers, by name.
    """
    model_type, classes = values.get("model_type"), values.get("architectures") or ()
    has_scores = is_reranker(values) or scores_by_tokens(values)
    encodes = has_scores or sees_both_sides(values) or any(name in BARE_CLASSES for name in classes)
    if model_type in ALSO_DECODERS or model_type in DECODER_FAMILIES:
        return encodes or MODULES in sentence_files
    return model_type in ENCODER_FAMILIES or MODULES in sentence_files


def read_encoder_config(
    uri: str,
    values: Mapping[str, Any],
    sentence_files: Mapping[str, Any] | None = None,
    weight_files: Sequence[str] = (),
) -> AnyEncoderConfig:
    """Read the `config.json` of an encoder, and how its files of sentence-transformers make a vector.

    Without such files a vector is the last token's for a causal decoder, and the mean of all tokens for any other.

    Args:
        uri: the checkpoint, for messages.
        values: its content.
        sentence_files: the files of sentence-transformers, by name.
        weight_files: the names of the files of weights.

    Raises:
        UnsupportedModel: a feature of this model is not served.
    """
    config, files, model_type = resolved(HubConfig(uri, values)), sentence_files or {}, values.get("model_type")
    families = ENCODER_FAMILIES | DECODER_FAMILIES
    if model_type not in families:
        raise config.refuse(f"model_type {model_type!r} is not served as an encoder. Served: {', '.join(families)}.")
    is_decoder = model_type in DECODER_FAMILIES
    if scores_by_tokens(values):
        vector = token_score_config(config)
    elif is_reranker(values) and not _pools(files):
        vector = score_config(config, files)
    elif is_decoder and MODULES not in files and not sees_both_sides(values):
        vector = VectorConfig((Pooling.LAST,))
    else:
        vector = read_sentence_vector(uri, files)
    if not is_decoder and not vector.is_score:
        vector = replace(vector, token_heads=read_token_heads(weight_files, values))
    return import_module(f"service.models.encoders.{families[model_type]}").read_config(config, vector)


def _pools(sentence_files: Mapping[str, Any]) -> bool:
    """Return whether the modules make vectors, whatever head the model was trained with."""
    return any(str(module.get("type")).endswith(".Pooling") for module in sentence_files.get(MODULES, ()))


def any_encoder_weight_specs(config: AnyEncoderConfig, dtype: np.dtype) -> tuple[WeightSpec, ...]:
    """Name every weight array of an encoder of any family."""
    specs = rotary_weight_specs if isinstance(config, RotaryConfig) else encoder_weight_specs
    return specs(config, dtype)  # pyright: ignore[reportArgumentType]
