"""A model's configuration as the values of a `config.json`, parsed from that or from a Levanter YAML.

A run of Levanter is served as Levanter computes it, so it has values of its own.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.checkpoint import levanter_unreleased
from service.errors import MalformedCheckpoint, UnsupportedModel
from service.models.description import describe_differences
from service.models.registry import REFUSED, read_config

logger = logging.getLogger(__name__)

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
    # Defends against T14.
    return values


def parse_levanter_yaml(uri: str, name: str, data: bytes, *, vocab_size: int) -> dict[str, Any] | None:
    """Return the values that stand for the model of a Levanter YAML; None if it has no `model:` part.

    Args:
        uri: the checkpoint's address, for messages.
        name: the file's name, for messages.
        data: the file: a training configuration, or only its `model:` part.
        vocab_size: the number of token ids of the checkpoint, which Levanter takes from the tokenizer.

    Raises:
        MalformedCheckpoint: it is not YAML, or Levanter refuses it.
        UnsupportedModel: the type of the model is not served.
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

    kind = str(model["type"])
    if kind in levanter_unreleased.DEFAULTS:
        return levanter_unreleased.read_run(uri, name, model, vocab_size)
    if kind not in levanter.TYPES:
        served = sorted((*levanter.TYPES, *levanter_unreleased.DEFAULTS))
        reason = REFUSED.get(kind, f"served are {', '.join(served)}")
        raise UnsupportedModel(uri, f"{name}: model.type = {kind!r} is not served: {reason}.")
    try:
        config = levanter.decode_config(dict(model))
    except Exception as error:  # draccus raises many kinds, all because of the file's values
        raise MalformedCheckpoint(uri, name, f"Levanter refuses it: {_first_line(error)}") from error
    run = levanter.run_values(config, vocab_size)
    try:
        exported = levanter.hub_values(config, vocab_size)
    except Exception as error:  # of many kinds, where Levanter cannot express the model as a Hugging Face one
        logger.info("Levanter cannot export this run", extra={"uri": uri, "reason": _first_line(error)})
        return run
    _tell_differences(uri, run, exported)
    return run


def levanter_values(uri: str, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that stand for a run, of whose model there is only a Hugging Face configuration.

    Raises:
        UnsupportedModel: Levanter has no such model, or none that is served.
        MalformedCheckpoint: Levanter refuses it.
    """
    from service.checkpoint import levanter

    if (kind := levanter_unreleased.kind_of(values)) is not None:
        return levanter_unreleased.run_of_export(uri, kind, values)
    served = [*(exported for *_, exported in levanter.TYPES.values()), "qwen3_5"]
    if values.get("model_type") not in served:
        message = (
            f"{name}: model_type {values.get('model_type')!r} is not served of Levanter. Served: {', '.join(served)}."
        )
        raise UnsupportedModel(uri, message)
    try:
        config = levanter.levanter_config(values)
        vocab_size = int(values["vocab_size"])
    except Exception as error:  # of many kinds, all because of the file's values
        raise MalformedCheckpoint(uri, name, f"Levanter refuses it: {_first_line(error)}") from error
    dtypes = {key: values[key] for key in ("dtype", "torch_dtype") if values.get(key) is not None}
    run = levanter.run_values(config, vocab_size, **dtypes)
    _tell_differences(uri, run, values)
    return run


def _tell_differences(uri: str, run: Mapping[str, Any], exported: Mapping[str, Any]) -> None:
    """Say where a run as Levanter computes it differs from its description for transformers; the run is served."""
    taken = read_config(uri, run)
    try:
        other = read_config(uri, exported)
    except UnsupportedModel as error:
        logger.info("the run is served as Levanter computes it", extra={"uri": uri, "reason": str(error)})
        return
    differences = describe_differences(taken, replace(other, model_type=taken.model_type, names=taken.names))
    if differences:
        logger.warning(
            "the run is served as Levanter computes it, which is how it was trained; its Hugging Face configuration "
            "says otherwise",
            extra={"uri": uri, "differences": differences},
        )


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
