"""A model's configuration as the values of a Hugging Face `config.json`, parsed from that or from a Levanter YAML."""

import json
from collections.abc import Mapping
from typing import Any

from service.errors import MalformedCheckpoint, UnsupportedModel

CONFIG_JSON = "config.json"
YAML_SUFFIXES = (".yaml", ".yml")


def parse_json(uri: str, name: str, data: bytes) -> Any:
    """Parse a JSON value.

    Raises:
        MalformedCheckpoint: the data is not JSON.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedCheckpoint(uri, name, "is not JSON.") from error


def parse_json_object(uri: str, name: str, data: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        MalformedCheckpoint: the data is not a JSON object.
    """
    values = parse_json(uri, name, data)
    if not isinstance(values, dict):
        raise MalformedCheckpoint(uri, name, "is not a JSON object.")
    return values


def parse_levanter_yaml(uri: str, name: str, data: bytes, *, vocab_size: int) -> dict[str, Any] | None:
    """Return the values of the `config.json` that a Levanter YAML stands for; None if it has no `model:` part.

    Args:
        uri: the checkpoint's address, for messages.
        name: the file's name, for messages.
        data: the file: a training configuration, or its `model:` part alone.
        vocab_size: the number of token ids of the checkpoint, which Levanter takes from the tokenizer.

    Raises:
        MalformedCheckpoint: it is not YAML, or Levanter refuses it.
        UnsupportedModel: Levanter cannot express the model as a Hugging Face one.
    """
    import yaml

    try:
        values = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError) as error:
        raise MalformedCheckpoint(uri, name, "is not YAML.") from error
    model = values.get("model", values) if isinstance(values, Mapping) else None
    if not isinstance(model, Mapping) or "type" not in model:
        return None
    from service.checkpoint import levanter

    try:
        config = levanter.decode_config(dict(model))
    except Exception as error:  # draccus raises many kinds, all because of the file's values
        raise MalformedCheckpoint(uri, name, f"Levanter refuses it: {_first_line(error)}") from error
    try:
        return levanter.hub_values(config, vocab_size)
    except (NotImplementedError, ValueError, AttributeError) as error:
        raise UnsupportedModel(uri, f"{name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
