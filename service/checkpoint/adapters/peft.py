"""The `adapter_config.json` of PEFT: the ranks and scales of an adapter, and which of its kinds are served.

Source: https://huggingface.co/docs/peft/package_reference/lora (LoraConfig), PEFT 0.21; `tuners/lora/model.py`
(`_create_and_replace`: patterns) and `tuners/lora/layer.py` (`update_layer`: scales).
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from service.errors import RefusedAdapter

logger = logging.getLogger(__name__)

CONFIG = "adapter_config.json"
MAX_PATTERN_CHARS, MAX_PATTERNS = 500, 10_000
# Fields that change what an adapter computes. A value that is empty or false changes nothing.
REFUSED = {
    "use_dora": "DoRA is not served; train with use_dora = false",
    "use_qalora": "QA-LoRA is not served",
    "use_bdlora": "BD-LoRA is not served",
    "target_parameters": "updates of parameters, such as those of experts, are not served",
    "layer_replication": "replicated layers are not served",
    "megatron_config": "layers of Megatron are not served",
    "alora_invocation_tokens": "activated LoRA, which begins at a token, is not served",
    "arrow_config": "mixtures of adapters are not served",
    "monteclora_config": "MonteCLoRA is not served",
    "kasa_config": "KaSA, which changes the base model's weights, is not served",
}
# Fields by which an adapter changes more than linear layers: that is merged, but has no place in a slot.
MERGED_ONLY = ("modules_to_save", "trainable_token_indices", "lora_bias")
# Initializations that change the weights of the base model, to which the adapter is then relative.
REFUSED_INITIALIZATIONS = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Fields that concern training, or say which layers an adapter has, as its tensors do too.
HARMLESS = (
    *("auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying", "eva_config"),
    *("exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern"),
    *("layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_core"),
    *MERGED_ONLY,
    *("alpha_pattern", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision"),
    *("runtime_config", "target_modules", "task_type", "use_rslora", "velora_config"),
)


@dataclass(frozen=True)
class AdapterConfig:
    """The ranks and scales of an adapter's layers."""

    base: str | None  # the name or path of the model that it was trained on
    rank: int
    alpha: float
    ranks: "tuple[ModulePattern[int], ...]"  # the first that matches decides
    alphas: "tuple[ModulePattern[float], ...]"
    is_rank_stabilized: bool
    trained: Mapping[str, Any]  # the fields of `MERGED_ONLY` that are set, and `bias`
    ties: bool  # whether an embedding that is the head too was trained as both

    def tokens_of(self, module: str) -> tuple[int, ...]:
        """Return the ids of the tokens of an embedding that were trained, in the order of their rows."""
        stated = self.trained.get("trainable_token_indices") or ()
        if isinstance(stated, dict):
            stated = next((ids for name, ids in stated.items() if f".{module}".endswith(f".{name}")), ())
        return tuple(stated) if all(type(token) is int for token in stated) else ()

    def rank_of(self, module: str) -> int:
        """Return the rank of a layer's update, by its name in the base model."""
        return next((pattern.value for pattern in self.ranks if pattern.matches(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of a layer's update.

        Source: Kalajdzievski 2023, arXiv:2312.03732, section 3 (rank stabilization: the root of the rank).
        """
        alpha = next((pattern.value for pattern in self.alphas if pattern.matches(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)


@dataclass(frozen=True)
class ModulePattern[Value]:
    """A value of the modules whose names end with what a regular expression matches."""

    value: Value
    names: TypeAdapter[str]

    def matches(self, module: str) -> bool:
        """Return whether a module has the value, by its name in the base model."""
        try:
            self.names.validate_python(module)
        except ValidationError:
            return False
        return True


def read_adapter_config(uri: str, values: Mapping[str, Any]) -> AdapterConfig:
    """Read the content of an `adapter_config.json`.

    Raises:
        RefusedAdapter: a value is malformed, or asks for a kind of adapter that is not served.
    """
    reading = _Reading(uri, values)
    if values.get("peft_type") != "LORA":
        raise reading.refuse("peft_type", f"is {values.get('peft_type')!r}; only LORA is served")
    for field, reason in REFUSED.items():
        if values.get(field):
            raise reading.refuse(field, reason)
    if values.get("bias", "none") not in {"none", "all", "lora_only"}:
        raise reading.refuse("bias", f"is {values['bias']!r}; PEFT knows 'none', 'all' and 'lora_only'")
    initialization = values.get("init_lora_weights")
    if isinstance(initialization, str) and initialization.lower().startswith(REFUSED_INITIALIZATIONS):
        reason = (
            f"is {initialization!r}, which changes the base model. Save the adapter with "
            "path_initial_model_for_weight_conversion, which makes it relative to the unchanged model"
        )
        raise reading.refuse("init_lora_weights", reason)
    unknown = sorted(key for key in values.keys() - REFUSED.keys() - set(HARMLESS) if values[key])
    if unknown:
        logger.warning("fields of an adapter are unknown and have no effect", extra={"uri": uri, "fields": unknown})
    base = values.get("base_model_name_or_path")
    return AdapterConfig(
        base=base if isinstance(base, str) else None,
        rank=reading.rank("r", values.get("r", 8)),
        alpha=reading.alpha("lora_alpha", values.get("lora_alpha", 8)),
        ranks=tuple(
            ModulePattern(reading.rank("rank_pattern", v), names) for names, v in reading.patterns("rank_pattern")
        ),
        alphas=tuple(
            ModulePattern(reading.alpha("alpha_pattern", v), names) for names, v in reading.patterns("alpha_pattern")
        ),
        is_rank_stabilized=bool(values.get("use_rslora")),
        trained={key: values[key] for key in MERGED_ONLY if values.get(key)}
        | ({"bias": values["bias"]} if values.get("bias", "none") != "none" else {}),
        ties=bool(values.get("ensure_weight_tying")),
    )


@dataclass(frozen=True)
class _Reading:
    """The values of a file, and refusals that name it."""

    uri: str
    values: Mapping[str, Any]

    def refuse(self, field: str, reason: str) -> RefusedAdapter:
        return RefusedAdapter(self.uri, CONFIG, field, reason)

    def rank(self, field: str, value: Any) -> int:
        if type(value) is not int or value < 1:
            raise self.refuse(field, f"is {value!r}; a rank is a whole number of at least 1")
        return value

    def alpha(self, field: str, value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.refuse(field, f"is {value!r}, not a finite number")
        if value == 0:
            raise self.refuse(field, "is 0, so the adapter would have no effect")
        return float(value)

    def patterns(self, field: str) -> "list[tuple[TypeAdapter[str], Any]]":
        """Return the pairs of a mapping from regular expressions.

        Others may have written them, so they are matched by pydantic's engine, which takes linear time.
        Source: PEFT, `get_pattern_key` (a match ends with the name, and begins with it or behind a dot).
        """
        patterns = self.values.get(field) or {}
        if not isinstance(patterns, dict) or len(patterns) > MAX_PATTERNS:
            raise self.refuse(field, f"is not a mapping of at most {MAX_PATTERNS} patterns")
        found = []
        for pattern, value in patterns.items():
            if len(pattern) > MAX_PATTERN_CHARS:
                raise self.refuse(
                    field, f"has a pattern of {len(pattern)} characters; the limit is {MAX_PATTERN_CHARS}"
                )
            try:
                names = TypeAdapter(Annotated[str, Field(pattern=rf"^(?:.*\.)?(?:{pattern})$")])
            except SchemaError as error:
                raise self.refuse(field, f"has {pattern[:80]!r}, which is no regular expression here") from error
            found.append((names, value))
        return found
