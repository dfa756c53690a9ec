"""A Hugging Face `config.json`, read key by key; no jax."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from service.errors import UnsupportedModel
from service.models.description import Activation

MAX_CONFIG_INT = 2**31 - 1
# Of numbers that a description has as many parts of. The largest models have 128 layers, and 512 experts in each.
MAX_LAYERS, MAX_EXPERTS = 1024, 2048
SIZES = ("_size", "_dim")  # keys that end so are no numbers of parts
_PARTS = (("layer", MAX_LAYERS), ("depth", MAX_LAYERS), ("expert", MAX_EXPERTS))
# Source: transformers `activations.py` (ACT2CLS): names of one function, which differ in how they compute it
ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), Activation.GELU),
    **dict.fromkeys(
        ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"), Activation.GELU_TANH
    ),
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    **dict.fromkeys(("silu", "swish"), Activation.SILU),
    "sigmoid": Activation.SIGMOID,
    "tanh": Activation.TANH,
    "linear": Activation.NONE,
}


@dataclass(frozen=True)
class HubConfig:
    """A `config.json`, read key by key with errors that name the key and the file."""

    uri: str
    values: Mapping[str, Any]
    max_model_len: int | None = None  # tokens that the operator asks for

    def required_int(self, key: str) -> int:
        """Return a positive integer.

        Raises:
            UnsupportedModel: the value is missing, not a positive integer, or too large for any model.
        """
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UnsupportedModel(self.uri, f"config.json: {key} is {value!r}, which should be a positive integer.")
        is_number = "per_layer" not in key and not key.endswith(SIZES)
        most = next((most for part, most in _PARTS if is_number and part in key), MAX_CONFIG_INT)
        # Defends against T43.
        if value > most:
            raise UnsupportedModel(self.uri, f"config.json: {key} is larger than {most}.")
        return value

    def optional_int(self, key: str, default: int) -> int:
        """Return a positive integer, or the default where the key is absent or null."""
        return default if self.values.get(key) is None else self.required_int(key)

    def int_or_none(self, key: str) -> int | None:
        """Return a positive integer, or None where the key is absent or null."""
        return None if self.values.get(key) is None else self.required_int(key)

    def part(self, key: str) -> "HubConfig":
        """Return a part of the file as a file of its own; one that is absent or null is empty.

        Raises:
            UnsupportedModel: it is no object.
        """
        values = self.values.get(key)
        values = {} if values is None else values
        if not isinstance(values, dict):
            raise self.refuse(f"{key} is {type(values).__name__}, which should be an object.")
        return HubConfig(self.uri, values, self.max_model_len)

    def with_defaults(self, defaults: Mapping[str, Any]) -> "HubConfig":
        """Return the file with these values where a key is absent or null."""
        missing = {key: value for key, value in defaults.items() if self.values.get(key) is None}
        return replace(self, values={**self.values, **missing})

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a boolean, which may be written as 0 or 1, or the default where the key is absent or null.

        Raises:
            UnsupportedModel: the value is another one.
        """
        value = self.values.get(key)
        if value is not None and value not in (True, False):
            raise self.refuse(f"{key} is {value!r}, which should be true or false.")
        return default if value is None else bool(value)

    def refuse_unless(self, key: str, *accepted: Any) -> None:
        """Raise if the configuration asks for a feature that changes results and is not served.

        Raises:
            UnsupportedModel: the key has a value other than the accepted ones and null.
        """
        value = self.values.get(key)
        if value is not None and value not in accepted:
            others = f"; only {', '.join(map(repr, accepted))}" if accepted else ""
            raise UnsupportedModel(self.uri, f"config.json: {key} = {value!r} is not served{others}.")

    def refuse(self, reason: str) -> UnsupportedModel:
        """Return the error that names the file, to be raised."""
        return UnsupportedModel(self.uri, f"config.json: {reason}")

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number, or the default, if there is one, where the key is absent or null.

        Raises:
            UnsupportedModel: the value is not a positive finite number.
        """
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise self.refuse(f"{key} is {value!r}, which should be a positive number.")
        return float(value)

    def at_most(self, key: str, limit_key: str) -> int:
        """Return a positive integer that is no more than another one.

        Raises:
            UnsupportedModel: a value is missing or malformed, or the first is larger.
        """
        value, limit = self.required_int(key), self.required_int(limit_key)
        if value > limit:
            raise self.refuse(f"{key} = {value} is more than {limit_key} = {limit}.")
        return value

    def optional_number(self, key: str) -> float | None:
        """Return a positive number, or None where the key is absent or null.

        Raises:
            UnsupportedModel: the value is not a positive finite number.
        """
        return None if self.values.get(key) is None else self.number(key)

    def activation(self, key: str, default: Activation = Activation.SILU) -> Activation:
        """Return a non-linearity, or the default where the key is absent or null.

        Raises:
            UnsupportedModel: it is not served.
        """
        self.refuse_unless(key, *ACTIVATIONS)
        name = self.values.get(key)
        return default if name is None else ACTIVATIONS[name]
