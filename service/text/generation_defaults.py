"""Sampling options for requests that leave them out: the checkpoint's, or an operator's for one model."""

from collections.abc import Mapping
from dataclasses import dataclass

# The least and the greatest value of each option that is a number with a fraction.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
MAX_TOP_K = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The options that a model's author or operator states; None where none is stated."""

    temperature: float | None = None  # [0, 2]
    top_p: float | None = None  # (0, 1]
    top_k: int | None = None  # [-1, 2**31); 0 and -1 keep all tokens
    min_p: float | None = None  # [0, 1]
    repetition_penalty: float | None = None  # [0.01, 10]
    max_tokens: int | None = None  # of a completion, at least 1; only an operator's


NO_DEFAULTS = GenerationDefaults()
