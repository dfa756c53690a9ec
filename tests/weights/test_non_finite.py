"""The tensors of a model whose first answer is NaN are found in its weights, under their names in the files."""

import numpy as np
import pytest

from service.models.decoder_weights import decoder_weight_specs
from service.models.quantization import Quantization
from service.models.registry import read_config
from service.weights.assembly import assemble_weights
from service.weights.non_finite import non_finite_tensors
from tests.parity.cases import CASES

CASE = CASES[0]
UP, QUERY, HEAD = "model.layers.1.mlp.up_proj.weight", "model.layers.2.self_attn.q_proj.weight", "lm_head.weight"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_tensor_with_such_a_value_is_named_and_those_beside_it_are_not(value: float, dtype: type):
    specs = decoder_weight_specs(read_config("m", CASE.hub_config), np.dtype(dtype))
    tensors = CASE.tensors()
    assert not [*non_finite_tensors(specs, assemble_weights(specs, tensors, mesh=None))]
    for name in (UP, QUERY, HEAD):
        tensors[name] = tensors[name].copy()
        tensors[name][-1, 3] = value
    assert {*non_finite_tensors(specs, assemble_weights(specs, tensors, mesh=None))} == {UP, QUERY, HEAD}


def test_weights_in_8_bits_are_finite():
    specs = decoder_weight_specs(read_config("m", CASE.hub_config), quantization=Quantization.INT8)
    assert not [*non_finite_tensors(specs, assemble_weights(specs, CASE.tensors(), mesh=None))]
