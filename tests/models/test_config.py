"""Numbers of a checkpoint's configuration: positive integers that some model can have, or a refusal by name."""

import pytest

from service.errors import UnsupportedModel
from service.models.config import MAX_CONFIG_INT, HubConfig


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (MAX_CONFIG_INT + 1, "num_hidden_layers is larger than 2147483647"),
        (10**4000, "num_hidden_layers is larger than 2147483647"),
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
