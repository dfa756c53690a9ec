"""The dtype to compute in; needs no jax."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def choose_dtype(wanted: str, hub_config: Mapping[str, Any], platform: str) -> np.dtype:
    """Return the dtype of weights and activations.

    Args:
        wanted: DTYPE; `auto` is float32 on a CPU, where narrower types are emulated, and elsewhere as saved.
        hub_config: the model's `config.json`, which names the dtype it was saved in.
        platform: jax's name of the device's platform, such as `cpu`.
    """
    if wanted != "auto":
        return np.dtype(wanted)
    saved = hub_config.get("dtype") or hub_config.get("torch_dtype") or "bfloat16"
    return np.dtype("float32" if platform == "cpu" else str(saved))
