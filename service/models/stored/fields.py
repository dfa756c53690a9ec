"""The fields of a `quantization_config`, each checked against what is served."""

from collections.abc import Mapping
from typing import Any

from service.errors import UnsupportedModel

KEY = "quantization_config"
SERVED = (
    "Served are checkpoints of compressed-tensors (W8A8-int8; FP8 with activations that are quantized by token; W4A16 "
    "and W8A16), FP8 in blocks, AWQ (gemm), GPTQ, MXFP4 of experts, and checkpoints that are not quantized."
)

type Accepted = Mapping[str, tuple[Any, ...]]
"""Values that are served, by key; a key that is missing counts as None."""


def refusal(uri: str, reason: str) -> UnsupportedModel:
    """Return the error for a field that is not served."""
    return UnsupportedModel(uri, f"config.json: {reason}. {SERVED}")


def check_fields(uri: str, path: str, found: Any, accepted: Accepted) -> None:
    """Check some fields of an object.

    Raises:
        UnsupportedModel: it is not an object, or a field has another value or type than those accepted.
    """
    if not isinstance(found, Mapping):
        raise refusal(uri, f"{path} = {found!r} is not served")
    for key, values in accepted.items():
        value = found.get(key)
        if not any(type(value) is type(each) and value == each for each in values):
            raise refusal(uri, f"{path}.{key} = {value!r} is not served")


def read_flag(uri: str, found: Mapping[str, Any], key: str) -> bool:
    """Return a field that has to be a boolean.

    Raises:
        UnsupportedModel: it is not one.
    """
    value = found.get(key)
    if not isinstance(value, bool):
        raise refusal(uri, f"{KEY}.{key} = {value!r} should be true or false")
    return value


def read_group_size(uri: str, path: str, value: Any) -> int | None:
    """Return how many columns share a scale; None for all of them.

    Raises:
        UnsupportedModel: the value is neither -1 nor a positive integer.
    """
    if type(value) is not int or not (value == -1 or value > 0):
        raise refusal(uri, f"{path} = {value!r} should be a positive integer, or -1 for whole rows")
    return None if value == -1 else value


def read_modules(uri: str, path: str, value: Any) -> tuple[str, ...]:
    """Return names of modules.

    Raises:
        UnsupportedModel: the value is not a list of names; a pattern is not a name.
    """
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(name, str) and not name.startswith("re:") for name in names):
        raise refusal(uri, f"{path} = {value!r} should be a list of modules' names")
    return tuple(names)
