"""The files that sentence-transformers adds to a checkpoint: pooling, prompts, the maximum length.

Source: sentence-transformers 6.2 `base/model.py` (modules.json, config_sentence_transformers.json),
`base/modules/transformer.py` (the files of the length) and `sentence_transformer/modules/pooling.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.errors import UnsupportedModel
from service.models.description import Activation
from service.models.encoders.config import DenseLayer, Pooling, VectorConfig

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
# The first that is there has the length; older versions name it after the family.
LENGTHS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
TOKENIZER = "tokenizer_config.json"  # not theirs, but it has a length too
# Arguments of tokenizers that change which ids a text has.
TOKENIZER_OPTIONS = frozenset({
    *("add_bos_token", "add_eos_token", "add_prefix_space", "do_lower_case", "strip_accents", "legacy", "subfolder"),
    *("split_special_tokens", "extra_special_tokens", "additional_special_tokens", "tokenizer_type", "backend"),
})  # fmt: skip
PACKAGE = "sentence_transformers."
SERVED = "Transformer, Pooling, Dense, Dropout, Normalize"
# The keys of older files, in the order in which the vectors of several are joined.
POOLING_KEYS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": Pooling.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
# By the name of torch's class; its module is another from version to version.
ACTIVATIONS = {
    "Identity": Activation.NONE,
    "Tanh": Activation.TANH,
    "ReLU": Activation.RELU,
    "GELU": Activation.GELU,
    "SiLU": Activation.SILU,
    "Sigmoid": Activation.SIGMOID,
}


@dataclass(frozen=True)
class SentenceConfig:
    """What the files say of texts before they are encoded."""

    max_tokens: int | None = None  # of one text; None for as many as the model has positions
    prompts: Mapping[str, str] = field(default_factory=dict)  # what is put before a text, by name
    default_prompt: str | None = None  # the name of the one for requests that name none
    lowers: bool = False  # whether texts are put in lower case first


def read_sentence_config(uri: str, files: Mapping[str, Any]) -> SentenceConfig:
    """Read what a checkpoint's files say of texts.

    Args:
        uri: the checkpoint, for messages.
        files: the content of each JSON file, by its name relative to the checkpoint.

    Raises:
        UnsupportedModel: an option is not served, or a value is malformed; the message names it.
    """
    name = next((name for name in LENGTHS if files.get(name)), LENGTHS[0])
    length, prompts = files.get(name) or {}, files.get(PROMPTS) or {}
    _check_texts(uri, name, length)
    named = {key: prompt or "" for key, prompt in (prompts.get("prompts") or {}).items()}
    default = prompts.get("default_prompt_name")
    if default is not None and default not in named:
        raise UnsupportedModel(uri, f"{PROMPTS}: default_prompt_name {default!r} is not one of its prompts.")
    tokenizer_kwargs = length.get("processor_kwargs") or length.get("tokenizer_args") or {}
    _check_tokenizer(uri, name, tokenizer_kwargs)
    places = (
        (name, "model_max_length", tokenizer_kwargs),
        (name, "max_seq_length", length),
        (TOKENIZER, "model_max_length", files.get(TOKENIZER) or {}),
    )
    found = next(((file, key, of[key]) for file, key, of in places if of.get(key) is not None), None)
    max_tokens = None if found is None else _length(uri, *found)
    return SentenceConfig(max_tokens, named, default, bool(length.get("do_lower_case")))


def read_sentence_vector(uri: str, files: Mapping[str, Any]) -> VectorConfig:
    """Read how a checkpoint's modules make a vector; without modules it is the mean of the hidden states.

    Raises:
        UnsupportedModel: a module, a pooling or an option is not served; the message names it.
    """
    kept_size = (files.get(PROMPTS) or {}).get("truncate_dim")
    if kept_size is not None and (type(kept_size) is not int or kept_size < 1):
        raise UnsupportedModel(uri, f"{PROMPTS}: truncate_dim is {kept_size!r}, which should be a positive integer.")
    if MODULES not in files:
        return VectorConfig(kept_size=kept_size)
    pooled, dense, is_normalized = None, [], False
    for module in files[MODULES]:
        kind, path = _kind(uri, module), str(module.get("path", "")).strip("./")
        file = f"{path}/config.json"
        config = files.get(file, {})
        if is_normalized or (kind == "Dense" and pooled is None) or (kind == "Pooling" and pooled is not None):
            raise UnsupportedModel(uri, f"{MODULES}: a module {kind} in this place is not served.")
        match kind:
            case "Pooling":
                pooled = _poolings(uri, file, config), config.get("include_prompt") is not False
            case "Dense":
                dense.append(_dense(uri, path, config))
            case "Normalize":
                _check_ends(uri, file, config)
                is_normalized = True
            case "Transformer" if path:
                raise UnsupportedModel(uri, f"{MODULES}: a Transformer in the folder {path!r} is not served.")
            case "Transformer" | "Dropout":  # the latter is only for training
                pass
            case _:
                raise UnsupportedModel(uri, f"{MODULES}: the module {kind!r} is not served. Served: {SERVED}.")
    if pooled is None:
        raise UnsupportedModel(uri, f"{MODULES}: there is no Pooling, so a text has no single vector.")
    poolings, pools_prompts = pooled
    return VectorConfig(poolings, tuple(dense), is_normalized, pools_prompts=pools_prompts, kept_size=kept_size)


def read_activation(uri: str, file: str, path: str) -> Activation:
    """Return the non-linearity of the import path of a class of torch.

    Raises:
        UnsupportedModel: it is not served.
    """
    name = path.rsplit(".", 1)[-1]
    if not path.startswith("torch.") or name not in ACTIVATIONS:
        served = ", ".join(ACTIVATIONS)
        raise UnsupportedModel(uri, f"{file}: the activation {path!r} is not served. Served are torch's {served}.")
    return ACTIVATIONS[name]


def _kind(uri: str, module: Mapping[str, Any]) -> str:
    path = str(module.get("type"))
    if not path.startswith(PACKAGE):
        raise UnsupportedModel(uri, f"{MODULES}: the module {path!r} is code of the checkpoint, which is never run.")
    return path.rsplit(".", 1)[-1]


def _check_texts(uri: str, name: str, length: Mapping[str, Any]) -> None:
    """Refuse a model whose texts become tokens through something else than its tokenizer."""
    text = (length.get("modality_config") or {}).get("text", {})
    if text is None or text.get("method", "forward") != "forward":
        raise UnsupportedModel(uri, f"{name}: modality_config: text by {text!r} is not served, only by 'forward'.")


def _check_tokenizer(uri: str, name: str, stated: Mapping[str, Any]) -> None:
    """Refuse options of the tokenizer that change its ids and are no part of its own files."""
    for key, value in stated.items():
        if value is not None and (key in TOKENIZER_OPTIONS or key.endswith("_token")):
            reason = f"{key} = {value!r} of the tokenizer is not served here. Save the tokenizer with it"
            raise UnsupportedModel(uri, f"{name}: {reason}.")


def _check_ends(uri: str, file: str, config: Mapping[str, Any]) -> None:
    """Refuse a module that works on something else than the vector of a text."""
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in {None, "sentence_embedding"}:
            raise UnsupportedModel(uri, f"{file}: {key} = {config[key]!r} is not served; only 'sentence_embedding'.")


def _length(uri: str, file: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        raise UnsupportedModel(uri, f"{file}: {key} is {value!r}, which should be a positive number.")
    return int(min(value, 2**62))  # a tokenizer without a limit has 10**30


def _poolings(uri: str, file: str, config: Mapping[str, Any]) -> tuple[Pooling, ...]:
    if not config:
        raise UnsupportedModel(uri, f"{file} is missing or empty, so nothing says how hidden states become a vector.")
    unknown = [key for key, on in config.items() if key.startswith("pooling_mode_") and on and key not in POOLING_KEYS]
    modes = config.get("pooling_mode")  # newer files name it, or several
    if modes is None:
        modes = [pooling for key, pooling in POOLING_KEYS.items() if config.get(key)] or ([] if unknown else ["mean"])
    elif isinstance(modes, str):
        modes = [modes]
    unserved = [*unknown, *(mode for mode in modes if mode not in list(Pooling))]
    if unserved or not modes:
        named, served = " and ".join(map(str, unserved)), ", ".join(Pooling)
        raise UnsupportedModel(uri, f"{file}: the pooling {named!r} is not served. Served: {served}.")
    return tuple(map(Pooling, modes))


def _dense(uri: str, path: str, config: Mapping[str, Any]) -> DenseLayer:
    file, activation = f"{path}/config.json", config.get("activation_function", "torch.nn.modules.activation.Tanh")
    _check_ends(uri, file, config)
    if config.get("use_residual"):
        raise UnsupportedModel(uri, f"{file}: use_residual is not served.")
    try:
        sizes = int(config["in_features"]), int(config["out_features"])
    except KeyError as error:
        raise UnsupportedModel(uri, f"{file}: {error.args[0]!r} is missing.") from None
    function = Activation.NONE if activation is None else read_activation(uri, file, str(activation))
    return DenseLayer(f"{path}/linear", *sizes, bool(config.get("bias", True)), function)
