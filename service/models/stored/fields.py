"""The fields of a `quantization_config`, each checked against what is served."""

from collections.abc import Callable, Mapping
from typing import Any

from service.errors import UnsupportedModel
from service.models.stored.modules import is_pattern

KEY = "quantization_config"
SERVED = (
    "Served are checkpoints of compressed-tensors (W8A8-int8, FP8, W4A16, W8A16, NVFP4 and MXFP4), ModelOpt (FP8 and "
    "NVFP4), FP8 by tensor, row or block, AWQ (gemm), GPTQ of 4 and 8 bits, MXFP4 of experts, and checkpoints that are "
    "not quantized, which QUANTIZATION=int8 quantizes here."
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
    """Return a field that has to be a boolean, or false where it is absent or null.

    Raises:
        UnsupportedModel: it is not one.
    """
    value = found.get(key)
    if value is not None and not isinstance(value, bool):
        raise refusal(uri, f"{KEY}.{key} = {value!r} should be true or false")
    return bool(value)


def read_group_size(uri: str, path: str, value: Any) -> int | None:
    """Return how many columns share a scale; None for all of them.

    Raises:
        UnsupportedModel: the value is neither -1 nor a positive integer.
    """
    if type(value) is not int or not (value == -1 or value > 0):
        raise refusal(uri, f"{path} = {value!r} should be a positive integer, or -1 for whole rows")
    return None if value == -1 else value


def read_wide(uri: str, path: str, value: Any, pattern: Callable[[str], str]) -> tuple[tuple[str, None], ...]:
    """Return the rules of modules that are not quantized.

    Args:
        uri: the checkpoint, for messages.
        path: of the field, for messages.
        value: its names of modules, or null.
        pattern: makes one of a name.

    Raises:
        UnsupportedModel: the value is not a list of names or patterns.
    """
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise refusal(uri, f"{path} = {value!r} should be a list of modules' names")
    patterns = [pattern(name) for name in names]
    if unread := [name for name, made in zip(names, patterns, strict=True) if not is_pattern(made)]:
        raise refusal(uri, f"{path} has {unread[0]!r}, which is no regular expression")
    return tuple((made, None) for made in patterns)
