"""Numbers of a checkpoint's configuration: positive integers that some model can have, or a refusal by name."""

import pytest

from service.errors import UnsupportedModel
from service.models.config import MAX_CONFIG_INT, HubConfig


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (MAX_CONFIG_INT + 1, "num_hidden_layers is larger than 1024"),
        (10**4000, "num_hidden_layers is larger than 1024"),
        (0, "num_hidden_layers is 0"),
        (-1, "num_hidden_layers is -1"),
        (True, "num_hidden_layers is True"),
        (2.0, "num_hidden_layers is 2.0"),
        ("2", "num_hidden_layers is '2'"),
    ],
)
def test_a_number_that_no_model_has_is_refused_by_its_name(value, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        HubConfig("a", {"num_hidden_layers": value}).required_int("num_hidden_layers")


def test_the_bound_is_exact():
    assert HubConfig("a", {"vocab_size": MAX_CONFIG_INT}).required_int("vocab_size") == MAX_CONFIG_INT


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("num_hidden_layers", 1024),
        ("n_layer", 1024),
        ("num_layers", 1024),
        ("depth", 1024),
        ("encoder_layers", 1024),
        ("num_experts", 2048),
        ("num_local_experts", 2048),
        ("moe_intermediate_size", MAX_CONFIG_INT),
        ("shared_expert_intermediate_size", MAX_CONFIG_INT),
    ],
)
def test_a_number_of_parts_is_bounded_before_they_are_described(key, most):
    assert HubConfig("a", {key: most}).required_int(key) == most
    with pytest.raises(UnsupportedModel, match=f"{key} is larger than {most}"):
        HubConfig("a", {key: most + 1}).required_int(key)
