"""Products whose arguments and results stay within limits that are stored with a model.

Source: transformers `models/gemma4/modeling_gemma4.py` (Gemma4ClippableLinear)
"""

from dataclasses import dataclass
from typing import override

import haliax as hax
import jax.numpy as jnp
from haliax import NamedArray
from jaxtyping import DTypeLike

from service.models.decoder_weights import LIMITED, LIMITS
from service.models.multiply import Multiply, NamedWeights

PARTS = ("qkv_group", "gate_up")  # axes along which the tensors of a weight are joined


@dataclass(frozen=True)
class LimitedMultiply(Multiply):
    """Multiplies by each tensor of a weight by itself, as each has limits of its own."""

    @override
    def __call__(
        self, x: NamedArray, weights: NamedWeights, name: str, axes: tuple[str, ...], dtype: DTypeLike | None = None
    ) -> NamedArray:
        """Multiply by a weight and sum over `axes`, its last ones."""
        multiply = super().__call__
        if name + LIMITED not in weights:
            return multiply(x, weights, name, axes, dtype)
        limits = weights[name + LIMITED].array.reshape(-1, len(LIMITS))
        joined = next((axis.name for axis in weights[name].axes if axis.name in PARTS), None)

        def limited(part: int, own: NamedWeights) -> NamedArray:
            lowest, highest, least, most = limits[part].astype(x.array.dtype)
            out = multiply(hax.named(jnp.clip(x.array, lowest, highest), x.axes), own, name, axes, dtype)
            return hax.named(jnp.clip(out.array, least, most), out.axes)

        if joined is None:
            return limited(0, weights)
        parts = []
        for part in range(len(limits)):
            own = {
                key: array.slice(joined, start=part, length=1)
                for key, array in weights.items()
                if key.startswith(name) and any(axis.name == joined for axis in array.axes)
            }
            parts.append(limited(part, {**weights, **own}))
        return hax.concatenate(joined, parts)
