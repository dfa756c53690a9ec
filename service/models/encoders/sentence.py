"""The files that sentence-transformers adds to a checkpoint: pooling, prompts, the maximum length.

Source: https://sbert.net/docs/package_reference/sentence_transformer/models.html; sentence-transformers
`SentenceTransformer.py` (modules.json, config_sentence_transformers.json) and `models/Transformer.py`
(sentence_bert_config.json).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.errors import UnsupportedModel
from service.models.description import Activation
from service.models.encoders.config import DenseLayer, Pooling, VectorConfig

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"

POOLINGS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_lasttoken": Pooling.LAST,
}
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": Activation.NONE,
    "torch.nn.modules.activation.Tanh": Activation.TANH,
    "torch.nn.modules.activation.ReLU": Activation.RELU,
    "torch.nn.modules.activation.GELU": Activation.GELU,
}


@dataclass(frozen=True)
class SentenceConfig:
    """What the files say; without them vectors are means of hidden states, as sentence-transformers makes them."""

    vector: VectorConfig = field(default_factory=VectorConfig)
    max_tokens: int | None = None  # of one text; None for as many as the model has positions
    prompts: Mapping[str, str] = field(default_factory=dict)  # what is put before a text, by name
    default_prompt: str | None = None  # the name of the one for requests that name none


def read_sentence_config(uri: str, files: Mapping[str, Any]) -> SentenceConfig:
    """Read the files of a checkpoint.

    Args:
        uri: the checkpoint, for messages.
        files: the content of each JSON file, by its name relative to the checkpoint.

    Raises:
        UnsupportedModel: a module, a pooling or an option is not served; the message names it.
    """
    length, prompts = files.get(LENGTH, {}), files.get(PROMPTS, {})
    if length.get("do_lower_case"):
        raise UnsupportedModel(uri, f"{LENGTH}: do_lower_case is not served; lower texts in tokenizer.json.")
    named, default = prompts.get("prompts") or {}, prompts.get("default_prompt_name")
    if default is not None and default not in named:
        raise UnsupportedModel(uri, f"{PROMPTS}: default_prompt_name {default!r} is not one of its prompts.")
    return SentenceConfig(_vector(uri, files), length.get("max_seq_length"), dict(named), default)


def _vector(uri: str, files: Mapping[str, Any]) -> VectorConfig:
    if MODULES not in files:
        return VectorConfig()
    pooling, dense, is_normalized = None, [], False
    for module in files[MODULES]:
        kind, path = str(module.get("type")).rsplit(".", 1)[-1], str(module.get("path", ""))
        config = files.get(f"{path}/config.json", {})
        if is_normalized or (kind == "Dense" and pooling is None) or (kind == "Pooling" and pooling is not None):
            raise UnsupportedModel(uri, f"{MODULES}: a module {kind} in this place is not served.")
        match kind:
            case "Transformer":
                if path:
                    raise UnsupportedModel(uri, f"{MODULES}: a Transformer in the folder {path!r} is not served.")
            case "Pooling":
                pooling = _pooling(uri, f"{path}/config.json", config)
            case "Dense":
                dense.append(_dense(uri, path, config))
            case "Normalize":
                is_normalized = True
            case _:
                served = "Transformer, Pooling, Dense, Normalize"
                raise UnsupportedModel(uri, f"{MODULES}: the module {kind!r} is not served. Served: {served}.")
    if pooling is None:
        raise UnsupportedModel(uri, f"{MODULES}: there is no Pooling, so a text has no single vector.")
    return VectorConfig(pooling, tuple(dense), is_normalized)


def _pooling(uri: str, file: str, config: Mapping[str, Any]) -> Pooling:
    if config.get("include_prompt") is False:
        raise UnsupportedModel(uri, f"{file}: include_prompt = false is not served.")
    mode = config.get("pooling_mode")  # newer files name it
    chosen = [mode] if mode is not None else [name for name, on in config.items() if "pooling_mode" in name and on]
    by_name = {**POOLINGS, **{str(pooling): pooling for pooling in Pooling}, "lasttoken": Pooling.LAST}
    if len(chosen) != 1 or chosen[0] not in by_name:
        served = ", ".join(Pooling)
        raise UnsupportedModel(uri, f"{file}: the pooling {' and '.join(map(str, chosen))!r} is not served: {served}.")
    return by_name[chosen[0]]


def _dense(uri: str, path: str, config: Mapping[str, Any]) -> DenseLayer:
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    try:
        return DenseLayer(
            f"{path}/linear",
            int(config["in_features"]),
            int(config["out_features"]),
            bool(config.get("bias", True)),
            ACTIVATIONS[activation],
        )
    except KeyError as error:
        raise UnsupportedModel(uri, f"{path}/config.json: {error.args[0]!r} is not served or is missing.") from None
