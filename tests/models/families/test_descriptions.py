"""A family's configuration becomes a description: what the pieces are, and where a rule of the family decides."""

import json
from typing import Any

import numpy as np
import pytest

from service.models.decoder_weights import decoder_weight_specs
from service.models.encoders.registry import is_encoder
from service.models.layer_groups import layer_groups
from service.models.quantization import Quantization
from service.models.registry import read_config
from tests.parity.cases import CASES
from tests.parity.family_cases import FAMILY_CASES

CONFIGS: dict[str, dict[str, Any]] = {
    case.name: json.loads(json.dumps(case.hub_config)) for case in (*CASES, *FAMILY_CASES)
}
LLAMA = CONFIGS["llama_grouped_heads"]


def without(name: str, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in CONFIGS[name].items() if key not in keys}


def test_every_fourth_layer_of_smollm3_leaves_queries_and_keys_as_they_are():
    config = read_config("m", without("smollm3", "no_rope_layer_interval") | {"num_hidden_layers": 8})
    assert [layer.attention.rotation is None for layer in config.layers] == [False, False, False, True] * 2


def test_five_of_six_layers_of_gemma_3_slide_and_have_a_rotation_of_their_own():
    config = read_config("m", without("gemma3", "layer_types") | {"num_hidden_layers": 12})
    assert [layer.attention.window for layer in config.layers] == [8, 8, 8, 8, 8, None] * 2
    assert [rope.theta for rope in config.rotations] == [10_000.0, 1_000_000.0]


def test_two_kinds_of_layers_make_no_more_kinds_of_programs_than_one():
    gemma = read_config("m", without("gemma3", "layer_types") | {"num_hidden_layers": 26})
    llama = read_config("m", LLAMA | {"num_hidden_layers": 26})
    kinds = [
        len({group.kind for group in layer_groups(config.layers, decoder_weight_specs(config))})
        for config in (gemma, llama)
    ]
    assert kinds[0] <= 1.5 * kinds[1]


def test_a_soft_cap_of_gemma_2_is_the_familys_unless_the_configuration_says_none():
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    config = read_config("m", without("gemma2", *keys))
    assert (config.heads.soft_cap, config.logits_soft_cap) == (50.0, 30.0)
    config = read_config("m", CONFIGS["gemma2"] | dict.fromkeys(keys))
    assert (config.heads.soft_cap, config.logits_soft_cap) == (None, None)


@pytest.mark.parametrize(("max_model_len", "context_len"), [(None, 16), (16, 16), (17, 64)])
def test_longrope_has_its_original_context_unless_the_operator_asks_for_more(max_model_len, context_len):
    config = read_config("m", CONFIGS["phi4_mini_long"], max_model_len)
    assert config.context_len == context_len
    rope = config.heads.rotation
    assert rope is not None
    assert rope.factors == ((1.5, 2.0, 4.0) if context_len == 64 else (1.0, 1.1, 1.3))


def test_the_bias_by_which_experts_are_chosen_is_never_narrowed():
    specs = decoder_weight_specs(read_config("m", CONFIGS["snowball"]), np.dtype(np.float16), Quantization.INT8)
    biases = [spec for spec in specs if spec.name.endswith("router_bias")]
    assert len(biases) == 5
    assert {spec.dtype for spec in biases} == {np.dtype(np.float32)}


def test_gpt_oss_without_a_scaling_has_that_of_the_family():
    config = read_config("m", without("gpt_oss", "rope_parameters", "layer_types"))
    rope = config.heads.rotation
    assert rope is not None
    assert (rope.theta, rope.factor, rope.original_context_len, rope.has_truncated_range) == (150_000, 32, 4096, False)
    assert [layer.attention.window for layer in config.layers] == [8, None, 8]


def test_gemma_3_generates_unless_it_was_trained_to_encode():
    config = CONFIGS["gemma3"]
    assert not is_encoder({**config, "architectures": ["Gemma3ForCausalLM"]}, {})
    assert is_encoder({**config, "architectures": ["Gemma3TextModel"]}, {})
    assert is_encoder({**config, "use_bidirectional_attention": True}, {})
    assert is_encoder(config, {"modules.json": []})
