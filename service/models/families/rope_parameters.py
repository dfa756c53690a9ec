"""The rotation of a `config.json`: one rule for all its spellings, that of transformers; no jax.

| in the file | taken as | source, in transformers 5.24 |
|---|---|---|
| `rope_scaling` and `rope_parameters` | `rope_scaling`, if it is not empty | `convert_rope_params_to_dict` |
| `rope_theta` in one of them and at the top | the inner one; then the top; then the family's | the same |
| `rope_type` and `type` | `rope_type` | `standardize_rope_params` |
| `original_max_position_embeddings`, inside and at the top | the top, the inside, the longest text | the same |
| `partial_rotary_factor` | of Phi-3 and GLM, and of no other family here | `modeling_phi3.py` and the other models |
| `su`, and in Phi-3 `yarn` | `longrope` | `configuration_phi3.py` |
| `dynamic` | `default`, which it is up to the longest text | `_compute_dynamic_ntk_parameters` |
| `mrope` | `default`, with sections of a family with images | `configuration_qwen2_vl.py` |
| parameters by kind of layer | those of each kind, in a family with kinds | `configuration_gemma3.py` |
| `rope_scaling` in a family with kinds | of full layers; of ModernBERT all | the same, `configuration_olmo3.py` |

What transformers cannot read, or what its releases read differently, is refused and never replaced by a default.
Sources: `modeling_rope_utils.py` where no file is named.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from service.models.config import HubConfig
from service.models.families.layer_kinds import FULL, SLIDING
from service.models.rope import RopeConfig

SERVED = ("default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn")
# Source: transformers `configuration_gpt_oss.py`, `configuration_ministral3.py`, `configuration_apertus.py`
_GPT_OSS = {
    **{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    **{"original_max_position_embeddings": 4096},
}
_MINISTRAL_3 = {
    **{"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0},
    **{"original_max_position_embeddings": 16_384, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}
_LFM_3 = {
    FULL: {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
}
_APERTUS = {
    **{"rope_type": "llama3", "rope_theta": 12_000_000.0, "factor": 8.0, "original_max_position_embeddings": 8192},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


@dataclass(frozen=True)
class FamilyRope:
    """What a family takes for what a file leaves out, and where it departs from the others."""

    theta: float = 10_000.0
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of a file without any
    partial: float | None = None  # the part of a head that is rotated; None: whole heads, always
    has_su: bool = False  # whether `yarn` is another name of `longrope`
    is_adjacent: bool = False  # whether a pair of dimensions are neighbours
    has_temperature: bool = False  # whether queries grow with their position
    has_sections: bool = False  # whether positions are of time, row and column
    # Of each kind of layer: the key of its theta at the top of a file, and its default; empty: one rotation for all.
    kinds: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    scaled_kinds: tuple[str, ...] = (FULL,)  # to which `rope_scaling` applies


_GEMMA_4 = FamilyRope(
    parameters={
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    },
    kinds={FULL: ("rope_theta", 10_000.0), SLIDING: ("rope_theta", 10_000.0)},
)
FAMILY_ROPES: Mapping[str, FamilyRope] = {
    "apertus": FamilyRope(12_000_000.0, _APERTUS),
    "bamba": FamilyRope(partial=0.5),
    "gemma3_text": FamilyRope(kinds={FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)}),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA_4),
    "glm": FamilyRope(partial=0.5, is_adjacent=True),
    "glm4": FamilyRope(partial=0.5, is_adjacent=True),
    "gpt_oss": FamilyRope(150_000.0, _GPT_OSS),
    **dict.fromkeys(("lfm2", "lfm2_moe"), FamilyRope(1_000_000.0)),
    "lfm3": FamilyRope(
        parameters=_LFM_3, kinds={FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_theta", 1_000_000.0)}
    ),
    "ministral3": FamilyRope(parameters=_MINISTRAL_3, has_temperature=True),
    "mixtral": FamilyRope(1_000_000.0),
    "modernbert": FamilyRope(
        kinds={FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
        scaled_kinds=(FULL, SLIDING),
    ),
    "olmo3": FamilyRope(kinds={FULL: ("rope_theta", 500_000.0), SLIDING: ("rope_theta", 500_000.0)}),
    "phi3": FamilyRope(partial=1.0, has_su=True),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), FamilyRope(partial=0.25)),
    "qwen3_vl_text": FamilyRope(500_000.0, has_sections=True),
    "smollm3": FamilyRope(2_000_000.0),
}


@dataclass(frozen=True)
class _Parameters:
    """The parameters of one rotation, each a number or absent."""

    config: HubConfig
    values: Mapping[str, Any]
    head_dim: int
    family: FamilyRope
    is_of_kind: bool = False

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number; the default where it is absent, and a refusal where there is no default."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.config.refuse(
                f"the rope scaling {self.rope_type!r} has {key} = {value!r}, which should be a positive number."
            )
        return float(value)

    @property
    def rope_type(self) -> str:
        """The type, under the name of today."""
        named = self.values.get("rope_type") or self.values.get("type") or "default"
        if named == "mrope":
            return "default"
        is_longrope = named == "su" or (named == "yarn" and self.family.has_su)
        return "longrope" if is_longrope else str(named)

    @property
    def context_len(self) -> int:
        """The tokens that the configuration claims."""
        return self.config.required_int("max_position_embeddings")

    @property
    def original_context_len(self) -> int:
        """The tokens of the context in pretraining."""
        outer = None if self.is_of_kind else self.config.int_or_none("original_max_position_embeddings")
        return outer or int(self.number("original_max_position_embeddings", float(self.context_len)))


def read_rope(config: HubConfig, *, head_dim: int) -> RopeConfig:
    """Return the rotation of all layers.

    Args:
        config: the model's configuration, with the defaults of its family.
        head_dim: the width of one head.

    Raises:
        UnsupportedModel: it is not served, malformed, or differs by the kind of a layer.
    """
    family = FAMILY_ROPES.get(str(config.values.get("model_type")), FamilyRope())
    found = _mapping(config, "rope_scaling") or _mapping(config, "rope_parameters") or dict(family.parameters)
    nested = {key: value for key, value in found.items() if key in (FULL, SLIDING)}
    flat, theta = {key: value for key, value in found.items() if key not in nested}, config.values.get("rope_theta")
    rope = _rope(config, family, _with_theta(flat, theta, family.theta), head_dim)
    for kind, inner in nested.items():
        if not isinstance(inner, Mapping) or rope != _rope(
            config, family, _with_theta(inner, theta, family.theta), head_dim, kind
        ):
            raise config.refuse(
                f"rope_parameters.{kind} is of one kind of layers, and {config.values.get('model_type')} has one "
                "rotation for all. Write its rope_type and rope_theta without kinds."
            )
    return rope


def read_ropes(config: HubConfig, *, head_dim: int) -> dict[str, RopeConfig]:
    """Return the rotation of each kind of layer, for a family that distinguishes them.

    Raises:
        UnsupportedModel: a rotation is not served, malformed, or read differently by releases of transformers.
    """
    family = FAMILY_ROPES[str(config.values["model_type"])]
    given, scaling = _mapping(config, "rope_parameters") or family.parameters, _mapping(config, "rope_scaling")
    nested = {kind: given[kind] for kind in family.kinds if given.get(kind) is not None}
    found = {}
    for kind, (key, default) in family.kinds.items():
        inner = nested.get(kind, {})
        if not isinstance(inner, Mapping):
            raise config.refuse(f"rope_parameters.{kind} is {inner!r}, which should be an object.")
        scaled = scaling if kind in family.scaled_kinds else {}
        found[kind] = _rope(
            config, family, _with_theta({**inner, **scaled}, config.values.get(key), default), head_dim, kind
        )
    if len(nested) < len(family.kinds):
        _check_readings(config, family, nested, found)
    return found


def with_sections(config: HubConfig, rope: RopeConfig, default: tuple[int, int, int]) -> RopeConfig:
    """Return the rotation by time, row and column, of a model whose texts alone turn by one position.

    Args:
        config: the model's configuration, with the defaults of its family.
        rope: the rotation of texts.
        default: the sections of a file without any.

    Raises:
        UnsupportedModel: the sections are not served, or malformed.
    """
    values = _mapping(config, "rope_scaling") or _mapping(config, "rope_parameters")
    return replace(rope, sections=_checked_sections(config, values, default, rope.rotary_dim))


def _check_readings(
    config: HubConfig, family: FamilyRope, nested: Mapping[str, Any], found: Mapping[str, RopeConfig]
) -> None:
    """Refuse a file of which releases of transformers make different rotations.

    Of a family with kinds today's release ignores parameters that are not by kind, and a scaling's `type`; it gives
    `rope_theta` of OLMo 3 only to full layers.
    """
    scaling = _mapping(config, "rope_scaling")
    flat = {key: value for key, value in _mapping(config, "rope_parameters").items() if key not in family.kinds}
    (full_key, _), (sliding_key, default) = family.kinds[FULL], family.kinds[SLIDING]
    has_one_theta = full_key == sliding_key
    is_clear = "rope_type" in scaling or scaling.get("type") in (None, "default")
    is_clear = is_clear and family.kinds.keys().isdisjoint(scaling)
    if has_one_theta and SLIDING not in nested:
        is_clear = is_clear and config.values.get(full_key) in (None, default)
    if flat:
        flat = _with_theta(flat, config.values.get(full_key), found[FULL].theta)
        meant = _rope(config, family, flat, found[FULL].rotary_dim)
        read = [rope for kind, rope in found.items() if kind not in nested and (kind == FULL or has_one_theta)]
        is_clear = is_clear and all(rope == meant for rope in read)
    if not is_clear:
        raise config.refuse(
            "releases of transformers make different rotations of this file. Write rope_parameters with the rope_type "
            f"and rope_theta of {FULL} and of {SLIDING}, as transformers 5.24 saves them."
        )


def _with_theta(values: Mapping[str, Any], outer: Any, default: float) -> dict[str, Any]:
    """Return parameters with the base of the rotation: their own, that at the top of the file, or the default."""
    found = [theta for theta in (values.get("rope_theta"), outer) if theta is not None]
    return {**values, "rope_theta": found[0] if found else default}


def _mapping(config: HubConfig, key: str) -> dict[str, Any]:
    value = config.values.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise config.refuse(f"{key} is {value!r}, which should be an object.")
    return dict(value)


def _rope(
    config: HubConfig,
    family: FamilyRope,
    values: Mapping[str, Any],
    head_dim: int,
    kind: str | None = None,
) -> RopeConfig:
    given = _Parameters(config, values, head_dim, family, kind is not None)
    rope_type = given.rope_type
    if rope_type not in SERVED:
        raise config.refuse(f"the rope scaling {rope_type!r} is not served; only {', '.join(SERVED)}.")
    rotary_dim = _rotary_dim(given)
    common = {
        "theta": given.number("rope_theta"),
        "rotary_dim": rotary_dim,
        "is_adjacent": family.is_adjacent,
        "sections": _sections(given, rotary_dim),
    }
    rope = _of_type(rope_type, given, common)
    if not family.has_temperature or not values.get("llama_4_scaling_beta"):
        return rope
    slope = given.number("llama_4_scaling_beta")
    return replace(rope, temperature_slope=slope, original_context_len=given.original_context_len)


def _of_type(rope_type: str, given: _Parameters, common: Mapping[str, Any]) -> RopeConfig:
    match rope_type:
        case "linear":
            return RopeConfig(**common, scaling=rope_type, factor=given.number("factor"))
        case "proportional":
            turning = int(given.number("partial_rotary_factor", 1.0) * given.head_dim // 2)
            return RopeConfig(**common, scaling=rope_type, factor=given.number("factor", 1.0), num_turning=turning)
        case "llama3":
            return RopeConfig(
                **common,
                scaling=rope_type,
                factor=given.number("factor"),
                original_context_len=given.original_context_len,
                low_freq_factor=given.number("low_freq_factor"),
                high_freq_factor=given.number("high_freq_factor"),
            )
        case "yarn":
            return _yarn(given, common)
        case "longrope":
            return _longrope(given, common)
        case _:
            return RopeConfig(**common)


def _rotary_dim(given: _Parameters) -> int:
    config, head_dim = given.config, given.head_dim
    share = given.values.get("partial_rotary_factor", config.values.get("partial_rotary_factor", given.family.partial))
    if given.rope_type == "proportional":  # the rest of a head turns by no angle
        share = None
    elif given.family.partial is None:
        # The models of such a family rotate whole heads by default, and fail where another type makes a part of them.
        if share not in (None, 1) and given.rope_type not in ("default", "dynamic"):
            raise config.refuse(
                f"partial_rotary_factor = {share!r} is not served of {config.values.get('model_type')} with the rope "
                f"scaling {given.rope_type!r}; only 1."
            )
        share = None
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    if share is not None and not is_number:
        raise config.refuse(f"partial_rotary_factor is {share!r}, which should be a number.")
    rotary_dim = head_dim if share is None else int(head_dim * share)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise config.refuse(
            f"{rotary_dim} of head_dim = {head_dim} dimensions are rotated (partial_rotary_factor = {share}); they "
            "should be a positive even number of them."
        )
    return rotary_dim


def _yarn(given: _Parameters, common: Mapping[str, Any]) -> RopeConfig:
    original = given.original_context_len
    factor = given.number("factor", given.context_len / original)

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given.values.get("mscale") and given.values.get("mscale_all_dim"):
        attention_factor = temperature(given.number("mscale")) / temperature(given.number("mscale_all_dim"))
    else:
        attention_factor = temperature(1.0)
    # transformers looks for `truncate` beside the parameters of all kinds.
    truncate = True if given.is_of_kind else given.values.get("truncate", True)
    return RopeConfig(
        **common,
        scaling="yarn",
        factor=factor,
        original_context_len=original,
        beta_fast=given.number("beta_fast", 32.0),
        beta_slow=given.number("beta_slow", 1.0),
        attention_factor=given.number("attention_factor", attention_factor),
        has_truncated_range=bool(truncate),
    )


def _longrope(given: _Parameters, common: Mapping[str, Any]) -> RopeConfig:
    original, num_pairs = given.original_context_len, common["rotary_dim"] // 2
    key = "long_factor" if (given.config.max_model_len or 0) > original else "short_factor"
    factors = given.values.get(key)
    numbers = factors if isinstance(factors, list) else []
    if len(numbers) != num_pairs or not all(isinstance(number, int | float) and number > 0 for number in numbers):
        raise given.config.refuse(f"{key} must hold a positive number for each of {num_pairs} pairs of dimensions.")
    factor = given.number("factor", given.context_len / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeConfig(
        **common,
        scaling="longrope",
        original_context_len=original,
        factors=tuple(map(float, numbers)),
        attention_factor=given.number("attention_factor", default),
    )


def _sections(given: _Parameters, rotary_dim: int) -> tuple[int, ...]:
    """Return the sections of a family with images; for text all three positions are one."""
    if not given.family.has_sections:
        return ()
    return _checked_sections(given.config, given.values, (24, 20, 20), rotary_dim)


def _checked_sections(
    config: HubConfig, values: Mapping[str, Any], default: tuple[int, int, int], rotary_dim: int
) -> tuple[int, ...]:
    sections = values.get("mrope_section", [*default])
    is_whole = isinstance(sections, list) and len(sections) == 3 and all(type(size) is int for size in sections)
    if not is_whole or sum(sections) != rotary_dim // 2 or not values.get("mrope_interleaved", True):
        raise config.refuse(f"mrope_section = {sections!r} is not served; only three interleaved parts of a head.")
    return tuple(sections)
