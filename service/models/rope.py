"""Rotary position embeddings (RoPE): the frequencies of each scaling; no jax.

Source: Su et al. 2021, arXiv:2104.09864; scalings as Hugging Face defines them in `modeling_rope_utils.py`:
linear (Chen et al. 2023, arXiv:2306.15595), llama3 (Llama 3.1 release), yarn (Peng et al. 2023, arXiv:2309.00071),
longrope (Ding et al. 2024, arXiv:2402.13753).

LongRoPE has two lists of factors. transformers takes the long one for a text that exceeds the original context, which
changes the keys of all its positions; keys in a cache do not change. So one list holds for all lengths: the short one,
with which the original context is the longest text, or, if the operator asks for more, the long one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int32

from service.errors import UnsupportedModel

SERVED_SCALINGS = ("default", "linear", "llama3", "longrope", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """The inverse frequencies of one model, and the factor on sine and cosine."""

    theta: float
    rotary_dim: int  # the first dimensions of a head, which are rotated
    scaling: str = "default"
    factor: float = 1.0
    original_context_len: int = 0  # tokens of the context in pretraining, before it was extended
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # factor of sine and cosine; 1 for all scalings but yarn and longrope
    has_truncated_range: bool = True  # yarn: the ends of the range are rounded to whole dimensions
    factors: tuple[float, ...] = ()  # longrope: of each pair of dimensions
    # Pairs of dimensions that turn by time, row and column; empty: all turn by one position.
    sections: tuple[int, ...] = ()

    @classmethod
    def from_hub(
        cls,
        uri: str,
        values: Mapping[str, Any],
        *,
        head_dim: int,
        context_len: int,
        default_theta: float = 10_000.0,
        max_model_len: int | None = None,
    ) -> "RopeConfig":
        """Read either form of the configuration: `rope_parameters`, or `rope_theta` with `rope_scaling`.

        Args:
            uri: the checkpoint, for messages.
            values: the content of `config.json`.
            head_dim: the width of one head.
            context_len: the most tokens that the configuration claims.
            default_theta: the base of a configuration without one.
            max_model_len: the most tokens that the operator asks for, which choose a list of LongRoPE.

        Raises:
            UnsupportedModel: the scaling is not served, or an odd number of dimensions is rotated.
        """
        given = _scaling(values)
        scaling = given.get("rope_type") or given.get("type") or "default"
        scaling = "longrope" if scaling == "su" else scaling  # its name in the first releases of Phi-3
        theta = float(given.get("rope_theta") or values.get("rope_theta") or default_theta)
        rotated_share = given.get("partial_rotary_factor", values.get("partial_rotary_factor"))
        rotary_dim = int(head_dim * (1.0 if rotated_share is None else float(rotated_share)))
        if scaling not in SERVED_SCALINGS:
            raise UnsupportedModel(
                uri, f"config.json: the rope scaling {scaling!r} is not served; only {', '.join(SERVED_SCALINGS)}."
            )
        if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
            raise UnsupportedModel(
                uri,
                f"config.json: {rotary_dim} of head_dim = {head_dim} dimensions are rotated "
                f"(partial_rotary_factor = {rotated_share}); they should be a positive even number of them.",
            )
        if scaling == "default":
            return cls(theta=theta, rotary_dim=rotary_dim, sections=_sections(uri, given, rotary_dim))
        if scaling == "longrope":
            return cls(
                theta=theta,
                rotary_dim=rotary_dim,
                scaling=scaling,
                factors=_longrope_factors(uri, values, rotary_dim, max_model_len),
                attention_factor=_longrope_attention_factor(values, context_len),
            )
        if "factor" not in given:
            raise UnsupportedModel(uri, f"config.json: the rope scaling {scaling!r} lacks its factor.")
        factor = float(given["factor"])
        return cls(
            theta=theta,
            rotary_dim=rotary_dim,
            scaling=scaling,
            factor=factor,
            original_context_len=int(given.get("original_max_position_embeddings") or context_len),
            low_freq_factor=float(given.get("low_freq_factor") or 1.0),
            high_freq_factor=float(given.get("high_freq_factor") or 4.0),
            beta_fast=float(given.get("beta_fast") or 32.0),
            beta_slow=float(given.get("beta_slow") or 1.0),
            attention_factor=_yarn_attention_factor(given, factor) if scaling == "yarn" else 1.0,
            has_truncated_range=bool(given.get("truncate", True)),
        )

    def axes(self) -> Int32[np.ndarray, " half_rotary_dim"]:
        """Return by which position each pair of dimensions turns: 0 for time, 1 for row, 2 for column.

        Source: transformers `modeling_qwen3_vl.py` (recomposition_frequencies)
        """
        found = np.zeros(self.rotary_dim // 2, np.int32)
        for axis in (1, 2):
            found[axis : 3 * self.sections[axis] : 3] = axis
        return found

    def inverse_frequencies(self) -> Float[np.ndarray, " half_rotary_dim"]:
        """Return the angle that one position adds, per pair of dimensions, in radians."""
        exponents = np.arange(0, self.rotary_dim, 2, dtype=np.float32) / self.rotary_dim
        plain = (1.0 / (self.theta**exponents)).astype(np.float32)
        match self.scaling:
            case "linear":
                return (plain / self.factor).astype(np.float32)
            case "llama3":
                return self._llama3(plain)
            case "yarn":
                return self._yarn(plain)
            case "longrope":
                return (plain / np.asarray(self.factors, np.float32)).astype(np.float32)
        return plain

    def _llama3(self, plain: Float[np.ndarray, " half_rotary_dim"]) -> Float[np.ndarray, " half_rotary_dim"]:
        wavelengths = 2 * math.pi / plain
        rotations = self.original_context_len / wavelengths
        smooth = (rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blended = (1 - smooth) * plain / self.factor + smooth * plain
        scaled = np.where(rotations < self.low_freq_factor, plain / self.factor, plain)
        is_between = (rotations >= self.low_freq_factor) & (rotations <= self.high_freq_factor)
        return np.where(is_between, blended, scaled).astype(np.float32)

    def _yarn(self, plain: Float[np.ndarray, " half_rotary_dim"]) -> Float[np.ndarray, " half_rotary_dim"]:
        low, high = self._yarn_dimension(self.beta_fast), self._yarn_dimension(self.beta_slow)
        if self.has_truncated_range:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.rotary_dim - 1)
        dimensions = np.arange(self.rotary_dim // 2, dtype=np.float32)
        ramp = np.clip((dimensions - low) / max(high - low, 0.001), 0, 1)
        return (plain / self.factor * ramp + plain * (1 - ramp)).astype(np.float32)

    def _yarn_dimension(self, num_rotations: float) -> float:
        """Return the dimension that rotates `num_rotations` times over the original context."""
        waves = self.original_context_len / (num_rotations * 2 * math.pi)
        return self.rotary_dim * math.log(waves) / (2 * math.log(self.theta))


def longrope_context(values: Mapping[str, Any], context_len: int) -> int | None:
    """Return the original context, in tokens, of a model with LongRoPE; None for another model."""
    given = _scaling(values)
    if (given.get("rope_type") or given.get("type")) not in ("longrope", "su"):
        return None
    known = given.get("original_max_position_embeddings") or values.get("original_max_position_embeddings")
    return int(known or context_len)


def _sections(uri: str, given: Mapping[str, Any], rotary_dim: int) -> tuple[int, ...]:
    sections = given.get("mrope_section")
    if sections is None:
        return ()
    is_whole = isinstance(sections, list) and len(sections) == 3 and all(type(size) is int for size in sections)
    if not is_whole or sum(sections) != rotary_dim // 2 or not given.get("mrope_interleaved", True):
        raise UnsupportedModel(
            uri, f"config.json: mrope_section = {sections!r} is not served; only three interleaved parts of a head."
        )
    return tuple(sections)


def _scaling(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(values.get("rope_parameters") or values.get("rope_scaling") or {})


def _longrope_factors(
    uri: str, values: Mapping[str, Any], rotary_dim: int, max_model_len: int | None
) -> tuple[float, ...]:
    original = longrope_context(values, 0) or 0
    key = "long_factor" if (max_model_len or 0) > original else "short_factor"
    factors = _scaling(values).get(key)
    numbers = factors if isinstance(factors, list) else []
    if len(numbers) != rotary_dim // 2 or not all(isinstance(number, int | float) and number > 0 for number in numbers):
        raise UnsupportedModel(
            uri, f"config.json: {key} must hold a positive number for each of {rotary_dim // 2} pairs of dimensions."
        )
    return tuple(map(float, numbers))


def _longrope_attention_factor(values: Mapping[str, Any], context_len: int) -> float:
    given, original = _scaling(values), longrope_context(values, context_len) or context_len
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    factor = float(given.get("factor") or context_len / original)
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _yarn_attention_factor(given: Mapping[str, Any], factor: float) -> float:
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given.get("mscale") and given.get("mscale_all_dim"):
        return temperature(float(given["mscale"])) / temperature(float(given["mscale_all_dim"]))
    return temperature(1.0)
