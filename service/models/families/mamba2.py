"""Mamba-2 in files: the keys and tensors that Granite 4, Bamba and Falcon-H1 share.

Source: transformers `models/bamba/configuration_bamba.py`, `models/bamba/modeling_bamba.py`.
"""

import math
from collections.abc import Mapping
from typing import Any

from service.models.config import HubConfig
from service.models.description import Norm, StateSpace
from service.models.families.layer_kinds import tell_state_dtype

# Those of a layer, for `dataclasses.replace` of a family's names.
NAMES: Mapping[str, Any] = {
    "state_in": ("mamba.in_proj",),
    "state_convolution": ("mamba.conv1d",),
    "state_decay": "mamba.A_log",
    "state_decay_bias": "mamba.dt_bias",
    "state_skip": "mamba.D",
    "state_norm": "mamba.norm",
    "state_out": "mamba.out_proj",
}


def read_state_space(config: HubConfig, width: int, norm: Norm | None, **options: Any) -> StateSpace:
    """Read the heads of Mamba-2.

    Args:
        config: the configuration, with the defaults of its family.
        width: that of all heads.
        norm: of what is read.
        options: further fields of the description.

    Raises:
        UnsupportedModel: a value is missing, malformed, or contradicts another.
    """
    config.refuse_unless("hidden_act", "silu")
    tell_state_dtype(config)
    heads = config.required_int("mamba_n_heads")
    if width % heads:
        raise config.refuse(f"mamba_n_heads = {heads} does not divide the width of the recurrent layers, {width}.")
    stated = config.values["mamba_d_head"]
    if stated not in (None, "auto") and config.required_int("mamba_d_head") * heads != width:
        raise config.refuse(
            f"mamba_d_head = {stated} times mamba_n_heads = {heads} is not the width of the recurrent layers, {width}."
        )
    least, most = read_step_limits(config)
    has_bias = config.flag("mamba_proj_bias")
    given: dict[str, Any] = {
        "num_groups": read_groups(config, "mamba_n_groups", heads),
        "state_dim": config.required_int("mamba_d_state"),
        "width": read_width(config, "mamba_d_conv"),
        "has_bias": has_bias,
        "has_output_bias": has_bias,
        "has_taps_bias": config.flag("mamba_conv_bias"),
    }
    return StateSpace(heads, head_dim=width // heads, norm=norm, least_step=least, most_step=most, **given | options)


def read_groups(config: HubConfig, key: str, num_heads: int) -> int:
    """Return the number of groups of heads.

    Raises:
        UnsupportedModel: it is no positive integer, or does not divide the heads.
    """
    groups = config.required_int(key)
    if num_heads % groups:
        raise config.refuse(f"{key} = {groups} does not divide the {num_heads} heads of the recurrent layers.")
    return groups


def read_width(config: HubConfig, key: str) -> int:
    """Return the number of taps.

    Raises:
        UnsupportedModel: it is no integer of at least 2.
    """
    width = config.required_int(key)
    if width < 2:
        raise config.refuse(f"{key} is 1: a convolution of one tap keeps no state.")
    return width


def read_step_limits(config: HubConfig) -> tuple[float, float]:
    """Return the least and the most step of a token, which may be infinite, as it is of a file without limits.

    Raises:
        UnsupportedModel: they are no two numbers, the first of which is not negative and less than the second.
    """
    given = config.values["time_step_limit"]
    if given is None:
        return 0.0, math.inf
    limits = [_number(limit) for limit in given] if isinstance(given, list | tuple) else []
    if len(limits) != 2 or not 0 <= limits[0] < limits[1]:
        raise config.refuse(f"time_step_limit is {given!r}, which should be the least and the most step of a token.")
    return limits[0], limits[1]


def _number(value: Any) -> float:
    """Return a number of a file, in which infinity may be an object or a word; NaN for what is none.

    Source: transformers `configuration_utils.py` (`__float__`)
    """
    if isinstance(value, Mapping):
        value = value.get("__float__")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except ValueError:
        return math.nan
