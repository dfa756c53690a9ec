"""Promises under the names of other servers: honoured where they mean one of this interface's, and never a hint.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (`n_predict`, `json_schema`),
https://docs.vllm.ai/en/v0.9.0/features/structured_outputs.html (`guided_*`, since then `structured_outputs`),
https://docs.sglang.io/basic_usage/sampling_params.html (`max_new_tokens`, `regex`, `ebnf`),
https://huggingface.co/docs/text-generation-inference (`grammar` as an object),
https://github.com/ollama/ollama/blob/main/docs/api.md (`format`, `options`)
"""

from collections.abc import Mapping
from typing import Any

from service.api.schema.wire import NeutralValues
from service.errors import InvalidParameter, UnsupportedParameter

# Promises that mean nothing of this interface's.
REFUSED_PROMISES: NeutralValues = {"stop_regex": ("", []), "structural_tag": ("", {})}
# Promises that only chats, completions and responses keep.
GRAMMAR_PROMISES: NeutralValues = {
    **dict.fromkeys(("ebnf", "grammar", "json_schema", "regex"), ("",)),
    **dict.fromkeys(("guided_grammar", "guided_json", "guided_regex"), ("",)),
    "guided_choice": ([],),
    "min_new_tokens": (0,),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    **REFUSED_PROMISES,
}
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict", "num_predict")
_NAMES = {
    "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty",
    "stop_sequences": "stop",
}
# Grammars whose value is that of a notation of `structured_outputs`, and the notation.
_NOTATIONS = {
    "ebnf": "grammar",
    "grammar": "grammar",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json": "json",
    "guided_regex": "regex",
    "json_schema": "json",
    "regex": "regex",
}
_GRAMMARS = ("format", *_NOTATIONS)
# Of Ollama's options, those that are promises or that every server has.
_OPTIONS = {"num_predict", "repeat_penalty", "stop", "temperature", "top_p", "top_k", "min_p", "seed",
            "presence_penalty", "frequency_penalty"}  # fmt: skip


def with_own_names(document: dict[str, Any], limit: str, *, own_limits: tuple[str, ...]) -> dict[str, Any]:
    """Return a body that states its promises under this interface's names.

    Args:
        document: the body.
        limit: the name of the most tokens of an answer.
        own_limits: the names for that which the interface has.

    Raises:
        InvalidParameter: two names of one promise state different values, or a value means nothing.
    """
    if not document.keys() & _FOREIGN.difference(own_limits):
        return document
    for wrapper in _WRAPPERS:
        inner = document.get(wrapper)
        if isinstance(inner, dict) and (found := sorted(_PROMISES & inner.keys())):
            raise UnsupportedParameter(f"{wrapper}.{found[0]}", "send it beside the messages or the prompt.")
    options = document.get("options")
    if isinstance(options, dict):
        stated = {name: value for name, value in options.items() if name in _OPTIONS and _is_stated(name, value)}
        others = {name: value for name, value in options.items() if name not in _OPTIONS}
        document = stated | document | {"options": others or None}
    names = {**_NAMES, **{name: limit for name in LIMITS if name not in own_limits}}
    result: dict[str, Any] = {name: value for name, value in document.items() if name not in names}
    for name, own in names.items():
        value = document.get(name)
        if own == limit and isinstance(value, int) and value < 0:  # the rest of the context
            value = -1
        if value is None or value in ("", []):
            continue
        if result.get(own) not in (None, value):
            raise InvalidParameter(f"'{name}' contradicts '{own}'; send one.", param=name)
        result[own] = value
    for name in _GRAMMARS:
        value = result.pop(name, None)
        if value in (None, "", [], {}) and not (_NOTATIONS.get(name) == "json" and value == {}):
            continue
        if result.get("structured_outputs") is not None or _constrains(result):
            raise InvalidParameter(f"'{name}' contradicts the other grammar of the request; send one.", param=name)
        result["structured_outputs"] = _structured(name, value)
    return result


def _is_stated(name: str, value: Any) -> bool:
    """Return whether an option of Ollama's says something: a limit that is not positive is none, and so is seed -1."""
    if name in ("num_predict", "seed") and isinstance(value, int) and value < (1 if name == "num_predict" else 0):
        return False
    return value is not None


def _constrains(document: Mapping[str, Any]) -> bool:
    stated = document.get("response_format")
    return isinstance(stated, dict) and stated.get("type") != "text"


def _structured(name: str, value: Any) -> dict[str, Any]:
    """Return a grammar as `structured_outputs` states it; raises UnsupportedParameter."""
    if isinstance(value, str):
        if name == "format" and value != "json":
            raise UnsupportedParameter(name, "it is 'json' or a JSON schema.")
        return {_NOTATIONS[name]: value} if name in _NOTATIONS else {"json_object": True}
    if name == "guided_choice":
        return {"choice": value}
    if not isinstance(value, dict):
        raise InvalidParameter(f"Invalid '{name}': it is neither a text nor an object.", param=name)
    if name == "grammar":
        return _of_tgi(value)
    if name == "format" or _NOTATIONS[name] == "json":
        return {"json": schema_of(value)}
    raise InvalidParameter(f"Invalid '{name}': it must be a string.", param=name)


def _of_tgi(value: dict[str, Any]) -> dict[str, Any]:
    kind, stated = value.get("type"), value.get("value")
    if kind == "regex" and isinstance(stated, str):
        return {"regex": stated}
    if kind in ("json", "json_object", "json_schema") and isinstance(stated, dict):
        return {"json": schema_of(stated)}
    raise UnsupportedParameter("grammar", "an object has the type 'json' or 'regex', and a value.")


def schema_of(value: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that may stand in OpenAI's object with its name."""
    schema = value.get("schema")
    return schema if isinstance(schema, dict) and "type" not in value and "properties" not in value else value


# Objects around parameters that belong beside them.
_WRAPPERS = ("extra_body", "parameters", "sampling_params")
_PROMISES = {*LIMITS, *_NAMES, *_GRAMMARS, *GRAMMAR_PROMISES, "logit_bias", "seed", "stop", "stop_token_ids"}
_FOREIGN = {"options", *_WRAPPERS, *LIMITS, *_NAMES, *_GRAMMARS}
