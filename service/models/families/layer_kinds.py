"""Layers that see a whole text, and layers that see a part of it: the keys of `config.json` for both.

Source: transformers `modeling_rope_utils.py` (rope_parameters by kind of layer) and `configuration_utils.py`
(layer_types).
"""

from collections.abc import Mapping, Sequence

from service.models.config import HubConfig
from service.models.rope import RopeConfig

FULL, SLIDING = "full_attention", "sliding_attention"


def read_windows(config: HubConfig, *, first_layer: int = 0) -> tuple[int | None, ...]:
    """Return each layer's window: by `layer_types` if the configuration has them, otherwise from `first_layer` on.

    Raises:
        UnsupportedModel: the window is malformed, or `layer_types` does not name a kind for each layer.
    """
    num_layers = config.required_int("num_hidden_layers")
    if config.values.get("sliding_window") is None:
        return (None,) * num_layers
    window = config.required_int("sliding_window")
    kinds = read_layer_kinds(config, [SLIDING if layer >= first_layer else FULL for layer in range(num_layers)])
    return tuple(window if kind == SLIDING else None for kind in kinds)


def read_layer_kinds(config: HubConfig, default: Sequence[str]) -> Sequence[str]:
    """Return the kind of each layer, by `layer_types` or, in files without it, the family's rule.

    Raises:
        UnsupportedModel: `layer_types` does not name a kind for each layer.
    """
    named = config.values.get("layer_types")
    if named is None:
        return default
    if not isinstance(named, list) or len(named) != len(default) or not {FULL, SLIDING}.issuperset(named):
        raise config.refuse(f"layer_types must name {FULL} or {SLIDING} for each of {len(default)} layers.")
    return named


def read_ropes(
    config: HubConfig, theta_keys: Mapping[str, tuple[str, float]], *, head_dim: int, context_len: int
) -> dict[str, RopeConfig]:
    """Return the RoPE of each kind of layer.

    Args:
        config: the model's configuration.
        theta_keys: the key of each kind's theta in files without `rope_parameters`, and its default.
        head_dim: the width of one head.
        context_len: the most tokens of a text.

    Raises:
        UnsupportedModel: a scaling is not served.
    """
    found, by_kind = {}, config.values.get("rope_parameters") or {}
    for kind, (key, default) in theta_keys.items():
        theta = float(config.values.get(key) or default)
        given = by_kind.get(kind) or ({"rope_type": "default"} if kind == SLIDING else {})
        scaling = given or config.values.get("rope_scaling") or {}
        values = {"rope_parameters": {"rope_theta": theta, **scaling}}
        found[kind] = RopeConfig.from_hub(config.uri, values, head_dim=head_dim, context_len=context_len)
    return found
