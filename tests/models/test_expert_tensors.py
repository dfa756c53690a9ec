"""Checkpoints whose experts are missing, doubled or of two shapes are refused by the name of the tensor."""

import json

import numpy as np
import pytest

from service.errors import MalformedCheckpoint
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.weights.headers import check_tensors
from tests.parity.family_cases import FAMILY_CASES

CASE = next(case for case in FAMILY_CASES if case.name == "mixtral")
EXPERTS = "model.layers.1.block_sparse_moe.experts."


def check(tensors: dict[str, np.ndarray]) -> None:
    config = read_config("m", json.loads(json.dumps(CASE.hub_config)))
    check_tensors("m", decoder_weight_specs(config), {name: tensor.shape for name, tensor in tensors.items()})


def test_all_experts_are_read():
    check(CASE.tensors())


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [
        (f"{EXPERTS}5.w2.weight", None, "is missing. config.json asks for it in shape \\[32, 48\\]"),
        (f"{EXPERTS}3.w1.weight", (40, 32), "has shape \\[40, 32\\]; config.json makes it \\[48, 32\\]"),
        (f"{EXPERTS}6.w1.weight", (48, 32), "have no place in the model that config.json describes"),
        ("model.layers.1.mlp.experts.gate_up_proj", (6, 96, 32), "have no place in the model"),
    ],
)
def test_a_missing_a_spare_or_a_misshapen_expert_is_refused_by_its_name(name, shape, reason):
    tensors = CASE.tensors()
    tensors.pop(name, None)
    if shape is not None:
        tensors[name] = np.zeros(shape, np.float32)
    with pytest.raises(MalformedCheckpoint, match=reason) as error:
        check(tensors)
    assert name in str(error.value)
