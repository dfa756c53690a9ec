"""Configurations as releases of transformers save them are read as transformers reads them.

`tests/parity/make_saved_configs.py` makes the reference.
"""

import gzip
import json
from typing import Any

import numpy as np
import pytest

from service.errors import UnsupportedModel
from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.hub_keys import FAMILY_KEYS, resolved, unknown_keys
from service.models.families.layer_kinds import FULL, SLIDING
from service.models.registry import FAMILIES, read_config
from tests.parity.make_saved_configs import CASES, KEYS_OF_NO_USE, MAX_MODEL_LEN, REFERENCES, other_defaults

RELEASES: dict[str, dict[str, Any]] = json.loads(gzip.decompress(REFERENCES.read_bytes()))
NEWEST = RELEASES[max(RELEASES, key=lambda version: [int(part) for part in version.split(".")])]
# Of these a release before 5 had other defaults or names, so what it saved is another model.
ELSEWHERE = {
    "4.57.6": {
        "apertus_theta",
        "gpt_oss_num_experts",
        "llama_both_types",
        "mixtral_num_experts",
        "qwen3_moe_local",
        "family_gpt_oss",
        "llama_both_keys",
    },
    "4.40.2": {"mixtral_num_experts", "llama_both_keys"},
}
# transformers 4.57 gives layers with a window `rope_theta`, and 5.24 its own default; 4.57's own default is another.
DISPUTED = {"olmo3_absent", "olmo3_flat", "olmo3_by_kind", "family_olmo3"}


def described(name: str, values: dict[str, Any]) -> DecoderConfig:
    return read_config(name, values, MAX_MODEL_LEN.get(name))


@pytest.mark.parametrize("version", RELEASES)
def test_what_a_release_saves_is_the_model_that_it_was_given(version: str):
    saved = RELEASES[version]["saved"]
    assert len(saved) > 50
    for name, values in saved.items():
        if name in ELSEWHERE.get(version, ()) or (version.startswith("4") and name in DISPUTED):
            continue
        assert described(name, values) == described(name, CASES[name]), (version, name)


@pytest.mark.parametrize("name", NEWEST["rotations"])
def test_rotations_are_those_of_transformers(name: str):
    config = described(name, CASES[name])
    by_kind = {SLIDING if attention.window else FULL: attention.rotation for attention in config.attentions}
    ropes = {rope for attention in config.attentions if (rope := attention.rotation) is not None}
    for kind, expected in NEWEST["rotations"][name].items():
        rope = by_kind.get(kind) if kind else next(iter(ropes))
        if rope is None:
            continue
        np.testing.assert_allclose(rope.inverse_frequencies(), expected["angles"], rtol=2e-6, err_msg=kind)
        assert rope.attention_factor == pytest.approx(expected["factor"])


@pytest.mark.parametrize("model_type", FAMILY_KEYS)
def test_a_default_is_that_of_transformers(model_type: str):
    assert other_defaults(model_type, NEWEST["defaults"][model_type]) == {}


@pytest.mark.parametrize("version", RELEASES)
def test_no_key_that_transformers_saves_is_unknown(version: str):
    release = RELEASES[version]
    for name, values in [*release["saved"].items(), *release["defaults"].items()]:
        if name not in KEYS_OF_NO_USE:
            assert unknown_keys(values) == (), (version, name)


def test_each_family_has_its_defaults():
    assert set(FAMILIES) - set(FAMILY_KEYS) == {"grug_moe"}  # which transformers has not


def test_a_key_of_a_release_to_come_is_served_and_named():
    values = {**CASES["family_qwen3"], "attention_flavour": "mint", "rope_colour": {"full_attention": 1}}
    assert described("m", values) == described("m", CASES["family_qwen3"])
    assert unknown_keys(values) == ("attention_flavour", "rope_colour")
    part = {**CASES["gemma3_images"], "text_config": {**CASES["gemma3_images"]["text_config"], "flavour": 1}}
    assert unknown_keys(part) == ("text_config.flavour",)


def test_null_is_a_value_only_where_transformers_takes_it():
    values = resolved(HubConfig("m", {"model_type": "gemma2", "rms_norm_eps": None, "attn_logit_softcapping": None}))
    assert values.values["rms_norm_eps"] == 1e-6
    assert values.values["attn_logit_softcapping"] is None
    assert values.values["final_logit_softcapping"] == 30.0


LLAMA, OLMO_3 = CASES["family_llama_grouped_heads"], CASES["olmo3_absent"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({**LLAMA, "rope_theta": {"full_attention": 1e6}}, "rope_theta = {'full_attention': 1000000.0}"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": {"a": 2}}}, "factor = {'a': 2}"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear"}}, "factor = None"),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor = None"),
        ({**LLAMA, "rope_scaling": {"rope_type": "axial"}}, "'axial' is not served; only default, "),
        ({**LLAMA, "rope_scaling": "yarn"}, "rope_scaling is 'yarn', which should be an object"),
        (
            {**LLAMA, "rope_parameters": {kind: {"rope_theta": 5.0} for kind in (FULL, SLIDING)}},
            "rope_parameters.full_attention is of one kind of layers, and llama has one",
        ),
        (
            {**LLAMA, "partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "partial_rotary_factor = 0.5 is not served of llama",
        ),
        ({**OLMO_3, "rope_theta": 10_000.0}, "make different rotations of this file. Write rope_parameters with"),
        ({**OLMO_3, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}, "make different rotations"),
        ({**OLMO_3, "rope_scaling": {"type": "linear", "factor": 2.0}}, "make different rotations"),
        ({**OLMO_3, "rope_scaling": {FULL: {"rope_type": "linear", "factor": 2.0}}}, "make different rotations"),
        ({**OLMO_3, "rope_parameters": {FULL: 5.0}}, "rope_parameters.full_attention is 5.0, which should be an obj"),
        ({**CASES["gpt_oss_absent"], "swiglu_alpha": 1.5}, "swiglu_alpha = 1.5 is not served"),
        ({**CASES["idefics3"], "text_config": {"model_type": "mistral"}}, "model_type = 'mistral' is not served"),
    ],
)  # fmt: skip
def test_what_would_be_another_rotation_is_refused_and_no_default(values: dict[str, Any], named: str):
    with pytest.raises(UnsupportedModel) as error:
        read_config("m", values)
    assert named in str(error.value)


# One of each family, and of each way to write a rotation.
SOME = ("llama_llama3", "olmo3_by_kind", "gemma3_by_kind", "phi3_longrope", "qwen3_moe_window", "qwen3_vl_scaling")
SOME += ("granite_4_block_types", "gemma3_images", "smolvlm", "gpt_oss_absent", "smollm3_layer_types", "gpt2_gelu_fast")
SOME += ("family_granite_moe", "mixtral_absent", "qwen2_window_layers", "gemma2_absent", "apertus_absent")
MALFORMED = ({"full_attention": 3}, [3], "3", {}, [], float("nan"), -1)


@pytest.mark.parametrize("name", SOME)
def test_a_malformed_value_is_refused_by_the_key_and_never_replaced_by_a_default(name: str):
    given = CASES[name]
    parts = {part: given[part] for part in ("text_config", "vision_config") if part in given}
    for part, values in [("", given), *parts.items()]:
        model_type = str(values.get("model_type")) if part != "vision_config" else ""
        defaults = FAMILY_KEYS[model_type].defaults if model_type in FAMILY_KEYS else {}
        numbers = {key for key in defaults if type(defaults[key]) in (int, float, bool)}
        for key in {*values, *numbers} - {"model_type", *parts}:
            for bad in MALFORMED:
                changed = {**values, key: bad}
                try:
                    read_config("m", {**given, part: changed} if part else changed)
                except UnsupportedModel:
                    continue
                if key in numbers - {"use_sliding_window", "max_window_layers"}:
                    assert is_unused(name, key), (part, key, bad)


# Those of experts and of recurrent layers, of which it has none.
_MAMBA = ("n_heads", "n_groups", "d_state", "d_conv", "expand", "conv_bias", "proj_bias")
UNREAD = {"granite_4_block_types": ("intermediate_size", "num_experts_per_tok", *(f"mamba_{key}" for key in _MAMBA))}


def is_unused(name: str, key: str) -> bool:
    """Return whether a family does not read a number, given the rest of the file."""
    uses_window = CASES[name].get("use_sliding_window", True)
    return (key == "sliding_window" and not uses_window) or key in UNREAD.get(name, ())
