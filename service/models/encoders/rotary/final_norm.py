"""The norm after the last layer, on the host: hidden states of a step do not have it yet."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from service.models.description import NormKind
from service.models.encoders.rotary.config import RotaryConfig

type Hidden = Float[np.ndarray, "token hidden"]


def final_norm(config: RotaryConfig, weight: np.ndarray) -> Callable[[Hidden], Hidden]:
    """Return the function that normalizes hidden states, in float32."""
    scale = np.asarray(weight, np.float32) + config.norm.is_plus_one

    def normalize(hidden: Hidden) -> Hidden:
        centered = hidden - hidden.mean(-1, keepdims=True) if config.norm.kind is NormKind.LAYER else hidden
        return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + config.norm.eps) * scale

    return normalize
