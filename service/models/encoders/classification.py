"""Rerankers: encoders whose classification head gives a pair of texts one score.

Source: transformers `BertForSequenceClassification` and `XLMRobertaClassificationHead`; the activation of the score:
sentence-transformers 6.2 `cross_encoder/model.py` (_parse_model_config, get_default_activation_fn).
"""

from collections.abc import Mapping
from typing import Any

from service.errors import UnsupportedModel
from service.models.config import HubConfig
from service.models.description import Activation
from service.models.encoders.config import DenseLayer, Pooling, VectorConfig
from service.models.encoders.sentence import PROMPTS, read_activation

MODERNBERT_POOLINGS = {"cls": Pooling.CLS, "mean": Pooling.MEAN}
CONFIG, CROSS_ENCODER = "config.json", "CrossEncoder"
CLASS_SUFFIX = "ForSequenceClassification"
# The layers of each family's head: the hidden one and the one that gives the score.
HEADS = {
    "bert": ("pooler.dense", "classifier"),
    "camembert": ("classifier.dense", "classifier.out_proj"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
}
# They score the last token, with one layer.
DECODERS = ("llama", "mistral", "qwen2", "qwen3")


def is_reranker(values: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` describes a model with a classification head."""
    return any(str(name).endswith(CLASS_SUFFIX) for name in values.get("architectures") or ())


def score_config(config: HubConfig, sentence_files: Mapping[str, Any]) -> VectorConfig:
    """Return the way from hidden states to a score.

    Args:
        config: the model's configuration.
        sentence_files: the files of sentence-transformers, by name.

    Raises:
        UnsupportedModel: the head has several labels, or an activation that is not served.
    """
    num_labels = len(config.values.get("id2label") or range(config.optional_int("num_labels", 2)))
    if num_labels != 1:
        message = f"config.json: a head with {num_labels} labels (id2label) is not served; a reranker has 1."
        raise UnsupportedModel(config.uri, message)
    model = sentence_files.get(PROMPTS) or {}
    prompt = (model.get("prompts") or {}).get(model.get("default_prompt_name"))
    if prompt:
        raise UnsupportedModel(config.uri, f"{PROMPTS}: the default prompt {prompt!r} of a reranker is not served.")
    size, activation = config.required_int("hidden_size"), _activation(config, model)
    model_type = str(config.values["model_type"])
    if model_type in DECODERS:
        score = DenseLayer("score", size, 1, has_bias=False, activation=activation)
        return VectorConfig((Pooling.LAST,), (score,), is_score=True)
    if model_type == "modernbert":
        return _modernbert(config, size, activation)
    if model_type not in HEADS:
        served = ", ".join((*HEADS, "modernbert", *DECODERS))
        raise UnsupportedModel(config.uri, f"config.json: a {model_type!r} reranker is not served. Served: {served}.")
    hidden, out = HEADS[model_type]
    layers = (
        DenseLayer(hidden, size, size, has_bias=True, activation=Activation.TANH),
        DenseLayer(out, size, 1, has_bias=True, activation=activation),
    )
    return VectorConfig((Pooling.CLS,), layers, is_score=True)


def _modernbert(config: HubConfig, size: int, activation: Activation) -> VectorConfig:
    """Source: transformers `models/modernbert/modeling_modernbert.py` (ModernBertPredictionHead)."""
    config.refuse_unless("classifier_pooling", *MODERNBERT_POOLINGS)
    hidden = DenseLayer(
        "head.dense",
        size,
        size,
        has_bias=config.flag("classifier_bias"),
        activation=config.activation("classifier_activation", Activation.GELU),
        norm="head.norm",
        norm_eps=float(config.values.get("norm_eps", 1e-5)),
    )
    score = DenseLayer("classifier", size, 1, has_bias=True, activation=activation)
    pooling = MODERNBERT_POOLINGS[config.values.get("classifier_pooling") or "cls"]
    return VectorConfig((pooling,), (hidden, score), is_score=True)


def _activation(config: HubConfig, model: Mapping[str, Any]) -> Activation:
    """Return what is applied to a score: three generations of the library store it in three places."""
    own = model.get("activation_fn") if model.get("model_type", CROSS_ENCODER) == CROSS_ENCODER else None
    newer, older = config.values.get("sentence_transformers") or {}, "sbert_ce_default_activation_function"
    stated = newer["activation_fn"] if "activation_fn" in newer else config.values.get(older)
    file, name = (CONFIG, stated) if own is None else (PROMPTS, own)
    return Activation.SIGMOID if name is None else read_activation(config.uri, file, str(name))
