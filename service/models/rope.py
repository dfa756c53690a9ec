"""Rotary position embeddings (RoPE): the frequencies of each scaling; no jax.

Source: Su et al. 2021, arXiv:2104.09864; scalings as Hugging Face defines them in `modeling_rope_utils.py`:
linear (Chen et al. 2023, arXiv:2306.15595), llama3 (Llama 3.1 release), yarn (Peng et al. 2023, arXiv:2309.00071).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from service.errors import UnsupportedModel

SERVED_SCALINGS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """The inverse frequencies of one model, and the factor on sine and cosine."""

    theta: float
    head_dim: int
    scaling: str = "default"
    factor: float = 1.0
    original_context_len: int = 0  # tokens of the context in pretraining, before it was extended
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # factor of sine and cosine; 1 for all scalings but yarn
    has_truncated_range: bool = True  # yarn: the ends of the range are rounded to whole dimensions

    @classmethod
    def from_hub(cls, uri: str, values: Mapping[str, Any], *, head_dim: int, context_len: int) -> "RopeConfig":
        """Read either form of the configuration: `rope_parameters`, or `rope_theta` with `rope_scaling`.

        Raises:
            UnsupportedModel: the scaling is not served, or only a part of the head is rotated.
        """
        given = dict(values.get("rope_parameters") or values.get("rope_scaling") or {})
        scaling = given.get("rope_type") or given.get("type") or "default"
        theta = float(given.get("rope_theta") or values.get("rope_theta") or 10_000.0)
        rotated_share = given.get("partial_rotary_factor", values.get("partial_rotary_factor"))
        if scaling not in SERVED_SCALINGS:
            raise UnsupportedModel(
                uri, f"config.json: the rope scaling {scaling!r} is not served; only {', '.join(SERVED_SCALINGS)}."
            )
        if rotated_share not in (None, 1, 1.0):
            raise UnsupportedModel(uri, f"config.json: partial_rotary_factor = {rotated_share} is not served.")
        if scaling == "default":
            return cls(theta=theta, head_dim=head_dim)
        if "factor" not in given:
            raise UnsupportedModel(uri, f"config.json: the rope scaling {scaling!r} lacks its factor.")
        factor = float(given["factor"])
        return cls(
            theta=theta,
            head_dim=head_dim,
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

    def inverse_frequencies(self) -> Float[np.ndarray, " half_head_dim"]:
        """Return the angle that one position adds, per pair of dimensions, in radians."""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / self.head_dim
        plain = (1.0 / (self.theta**exponents)).astype(np.float32)
        match self.scaling:
            case "linear":
                return (plain / self.factor).astype(np.float32)
            case "llama3":
                return self._llama3(plain)
            case "yarn":
                return self._yarn(plain)
        return plain

    def _llama3(self, plain: Float[np.ndarray, " half_head_dim"]) -> Float[np.ndarray, " half_head_dim"]:
        wavelengths = 2 * math.pi / plain
        rotations = self.original_context_len / wavelengths
        smooth = (rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blended = (1 - smooth) * plain / self.factor + smooth * plain
        scaled = np.where(rotations < self.low_freq_factor, plain / self.factor, plain)
        is_between = (rotations >= self.low_freq_factor) & (rotations <= self.high_freq_factor)
        return np.where(is_between, blended, scaled).astype(np.float32)

    def _yarn(self, plain: Float[np.ndarray, " half_head_dim"]) -> Float[np.ndarray, " half_head_dim"]:
        low, high = self._yarn_dimension(self.beta_fast), self._yarn_dimension(self.beta_slow)
        if self.has_truncated_range:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.head_dim - 1)
        dimensions = np.arange(self.head_dim // 2, dtype=np.float32)
        ramp = np.clip((dimensions - low) / max(high - low, 0.001), 0, 1)
        return (plain / self.factor * ramp + plain * (1 - ramp)).astype(np.float32)

    def _yarn_dimension(self, num_rotations: float) -> float:
        """Return the dimension that rotates `num_rotations` times over the original context."""
        waves = self.original_context_len / (num_rotations * 2 * math.pi)
        return self.head_dim * math.log(waves) / (2 * math.log(self.theta))


def _yarn_attention_factor(given: Mapping[str, Any], factor: float) -> float:
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given.get("mscale") and given.get("mscale_all_dim"):
        return temperature(float(given["mscale"])) / temperature(float(given["mscale_all_dim"]))
    return temperature(1.0)
