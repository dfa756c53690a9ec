"""Layers that see a whole text, and layers that see a part of it: the keys of `config.json` for both.

Source: transformers `modeling_rope_utils.py` (rope_parameters by kind of layer) and `configuration_utils.py`
(layer_types).
"""

from collections.abc import Callable, Mapping

from service.errors import UnsupportedModel
from service.models.config import HubConfig
from service.models.rope import RopeConfig

FULL, SLIDING = "full_attention", "sliding_attention"


def read_layer_kinds(config: HubConfig, is_full: Callable[[int], bool]) -> tuple[str, ...]:
    """Return the kind of each layer, by `layer_types` or, in files without it, by the family's rule.

    Raises:
        UnsupportedModel: `layer_types` does not name a kind for each layer.
    """
    num_layers, named = config.required_int("num_hidden_layers"), config.values.get("layer_types")
    if named is None:
        return tuple(FULL if is_full(layer) else SLIDING for layer in range(num_layers))
    if len(named) != num_layers or set(named) - {FULL, SLIDING}:
        message = f"layer_types must name {FULL} or {SLIDING} for each of {num_layers} layers."
        raise UnsupportedModel(config.uri, f"config.json: {message}")
    return tuple(named)


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
