"""The configuration of an adapter: what changes its results is read or refused by name."""

import math

import pytest

from service.checkpoint.adapters.peft import CONFIG, read_adapter_config
from service.errors import RefusedAdapter

PLAIN = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
LAYER = "model.layers.1.self_attn.q_proj"


def read(**changed):
    return read_adapter_config("gs://b/a", PLAIN | changed)


def test_scales_follow_the_rank_or_its_root():
    assert read().scale_of(LAYER) == 2
    assert read(use_rslora=True).scale_of(LAYER) == 4
    assert read(r=16, use_rslora=True).scale_of(LAYER) == 8 / math.sqrt(16)


@pytest.mark.parametrize(
    ("pattern", "is_matched"),
    [
        ("q_proj", True),
        ("proj", False),
        ("self_attn.q_proj", True),
        (r"layers\.\d+\.self_attn\.q_proj", True),
        (r"model\.layers\.0\.self_attn\.q_proj", False),
        (".*", True),
        ("(q|v)_proj", True),
        ("q_proj|k_proj", True),
    ],
)
def test_a_pattern_matches_whole_parts_at_the_end_of_a_name(pattern: str, is_matched: bool):
    config = read(rank_pattern={"v_proj": 7, pattern: 2}, alpha_pattern={pattern: 3})
    assert (config.rank_of(LAYER), config.scale_of(LAYER)) == ((2, 1.5) if is_matched else (4, 2))


def test_the_first_pattern_that_matches_wins():
    assert read(rank_pattern={"q_proj": 2, "self_attn.q_proj": 3}).rank_of(LAYER) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "IA3"),
        ("peft_type", None),
        ("use_dora", True),
        ("use_qalora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("bias", "some"),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("layer_replication", [[0, 2]]),
        ("alora_invocation_tokens", [5]),
        ("kasa_config", {"beta": 1}),
        ("init_lora_weights", "pissa_niter_16"),
        ("init_lora_weights", "OLoRA"),
        ("r", 0),
        ("r", True),
        ("r", "4"),
        ("lora_alpha", 0),
        ("lora_alpha", math.nan),
        ("lora_alpha", math.inf),
        ("lora_alpha", None),
        ("rank_pattern", {"q_proj": -1}),
        ("rank_pattern", ["q_proj"]),
        ("rank_pattern", {"q_proj(": 2}),
        ("alpha_pattern", {"q_proj": 0}),
        ("alpha_pattern", {r"(?=a)\1": 2}),
        ("alpha_pattern", {"(((a{100}){100}){100}){100}": 2}),
        ("alpha_pattern", {"a" * 501: 2}),
    ],
)
def test_what_is_not_served_is_refused_by_file_and_field(field: str, value: object):
    with pytest.raises(RefusedAdapter) as caught:
        read(**{field: value})
    assert (caught.value.file, caught.value.field) == (CONFIG, field)
    assert str(caught.value).startswith(f"gs://b/a: {CONFIG}: {field}: ")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", ["(a+)+b", "(.|.)" * 60 + "b", ".*" * 100 + "b", "(.*)*b"])
def test_a_hostile_pattern_takes_no_time(pattern: str):
    assert read(alpha_pattern={pattern: 3}).scale_of("a" * 200) == 2


def test_what_concerns_training_alone_is_accepted_and_what_is_unknown_is_told(caplog: pytest.LogCaptureFixture):
    read(init_lora_weights="eva", eva_config={"rho": 2.0}, lora_dropout=0.1, use_dora=False, modules_to_save=[])
    assert not caplog.records
    read(new_kind=True, other_kind=None)
    [record] = caplog.records
    assert record.fields == ["new_kind"]
