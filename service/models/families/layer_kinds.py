"""Layers that see a whole text, a part of it, or keep a state: the keys of `config.json` for all.

Source: transformers `configuration_utils.py` (layer_types, remap_legacy_layer_types).
"""

import logging
from collections.abc import Sequence

from service.models.config import HubConfig

logger = logging.getLogger(__name__)

FULL, SLIDING = "full_attention", "sliding_attention"
CONVOLUTION, LINEAR = "conv", "linear_attention"
# What files call the type in which other servers keep states.
STATE_DTYPES = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
FORMER_KINDS = {"attention": FULL, "mamba": LINEAR}  # and their names of today


def read_layer_kinds(
    config: HubConfig, default: Sequence[str], served: Sequence[str] = (FULL, SLIDING)
) -> Sequence[str]:
    """Return the kind of each layer, by `layer_types` or, in files without it, the family's rule.

    Raises:
        UnsupportedModel: `layer_types` does not name a kind for each layer.
    """
    named = config.values.get("layer_types")
    if named is None:
        return default
    kinds = [FORMER_KINDS.get(str(kind), str(kind)) for kind in named] if isinstance(named, list) else []
    if len(kinds) != len(default) or not all(kind in served for kind in kinds):
        raise config.refuse(f"layer_types must name {' or '.join(served)} for each of {len(default)} layers.")
    return kinds


def tell_state_dtype(config: HubConfig) -> None:
    """Say that states are kept in float32 if the file names another type, in which sums of many tokens lose digits."""
    stated = {key: config.values[key] for key in STATE_DTYPES if config.values.get(key) not in (None, "float32")}
    if stated:
        logger.warning("states are kept in float32", extra={"uri": config.uri, **stated})
