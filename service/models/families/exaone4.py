"""EXAONE 4: norms after both branches, norms of each head, and, with windows, no rotation of layers without one.

Source: LG AI Research 2025, arXiv:2507.11407; transformers `models/exaone4/modeling_exaone4.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, Layer
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.llama import read_attention, read_decoder, read_feed_forward, read_norm
from service.models.families.olmo2 import POST_NORM_NAMES


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `exaone4`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    norm, window = read_norm(config), config.int_or_none("sliding_window")
    rotated = read_attention(config, qk_norm=norm)
    full, sliding = (
        replace(rotated, rotation=rotated.rotation if window is None else None),
        replace(rotated, window=window),
    )
    feed_forward = read_feed_forward(config)
    kinds = read_layer_kinds(config, _kinds(config, window))
    layers = [Layer(sliding if kind == SLIDING else full, feed_forward, None, None, norm, norm) for kind in kinds]
    return read_decoder(config, layers, POST_NORM_NAMES)


def _kinds(config: HubConfig, window: int | None) -> list[str]:
    """Return the kind of each layer by the pattern: one full layer in a number of layers, or letters that repeat."""
    num_layers, pattern = config.required_int("num_hidden_layers"), config.values.get("sliding_window_pattern")
    if window is None:
        return [FULL] * num_layers
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        letters = [pattern[layer % len(pattern)] for layer in range(num_layers - 1)]
        return [*(SLIDING if letter == "L" else FULL for letter in letters), FULL]
    every = config.required_int("sliding_window_pattern")
    return [SLIDING if (layer + 1) % every else FULL for layer in range(num_layers)]
