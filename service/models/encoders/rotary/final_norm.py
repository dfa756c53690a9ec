"""The norm after the last layer, on the host: hidden states of a step do not have it yet."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from service.models.encoders.rotary.config import Norm, RotaryConfig

type Hidden = Float[np.ndarray, "token hidden"]


def final_norm(config: RotaryConfig, weight: np.ndarray) -> Callable[[Hidden], Hidden]:
    """Return the function that normalizes hidden states, in float32."""
    scale = np.asarray(weight, np.float32) + (config.norm is Norm.RMS_PLUS_ONE)

    def normalize(hidden: Hidden) -> Hidden:
        centered = hidden - hidden.mean(-1, keepdims=True) if config.norm is Norm.LAYER else hidden
        return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + config.norm_eps) * scale

    return normalize
