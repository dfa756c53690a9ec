"""Rotary position embeddings (RoPE): the frequencies of each scaling; no jax.

Source: Su et al. 2021, arXiv:2104.09864; scalings as Hugging Face defines them in `modeling_rope_utils.py`:
linear (Chen et al. 2023, arXiv:2306.15595), llama3 (Llama 3.1 release), yarn (Peng et al. 2023, arXiv:2309.00071),
longrope (Ding et al. 2024, arXiv:2402.13753).

LongRoPE has two lists of factors. transformers takes the long one for a text that exceeds the original context, which
changes the keys of all its positions; keys in a cache do not change. So one list holds for all lengths: the short one,
with which the original context is the longest text, or, if the operator asks for more, the long one.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int32


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
    num_turning: int = 0  # proportional: the first pairs of dimensions, which turn; the others do not
    attention_factor: float = 1.0  # factor of sine and cosine; 1 for all scalings but yarn and longrope
    has_truncated_range: bool = True  # yarn: the ends of the range are rounded to whole dimensions
    factors: tuple[float, ...] = ()  # longrope: of each pair of dimensions
    is_adjacent: bool = False  # whether dimensions 2 i and 2 i + 1 are a pair, and not i and i + rotary_dim / 2
    # Of the logarithm of how many original contexts precede a token, by which its query grows; 0 for none.
    temperature_slope: float = 0.0
    # Pairs of dimensions that turn by time, row and column; empty: all turn by one position.
    sections: tuple[int, ...] = ()

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
            case "proportional":
                turns = np.arange(len(plain)) < self.num_turning
                return np.where(turns, plain / self.factor, 0).astype(np.float32)
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
