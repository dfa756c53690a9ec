import numpy as np
import pytest

from service.errors import MalformedCheckpoint
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.models.weight_spec import TensorSource, WeightSpec
from service.weights.headers import check_tensors
from tests.parity.cases import CASES

CASE = CASES[0]
SPECS = decoder_weight_specs(read_config("test", CASE.hub_config))


def shapes(**changes):
    tensors = {name: tensor.shape for name, tensor in CASE.tensors().items()} | changes
    return {name: shape for name, shape in tensors.items() if shape is not None}


def test_a_complete_checkpoint_is_accepted():
    check_tensors("test", SPECS, shapes())


def test_a_missing_tensor_is_named_with_its_shape():
    with pytest.raises(
        MalformedCheckpoint, match=r"model.norm.weight: is missing. config.json asks for it in shape \[32\]"
    ):
        check_tensors("test", SPECS, shapes(**{"model.norm.weight": None}))


def test_a_wrong_shape_is_named_with_both():
    with pytest.raises(MalformedCheckpoint, match=r"has shape \[33\]; config.json makes it \[32\]"):
        check_tensors("test", SPECS, shapes(**{"model.norm.weight": (33,)}))


def test_a_tensor_that_the_model_has_no_place_for_is_refused():
    name = "model.layers.0.self_attn.q_proj.bias"
    with pytest.raises(MalformedCheckpoint, match=f"{name}: 1 tensors such as this one have no place"):
        check_tensors("test", SPECS, shapes(**{name: (32,)}))


def test_what_every_reader_computes_anew_and_a_second_copy_of_a_tied_table_are_let_be():
    tied = {**CASE.hub_config, "tie_word_embeddings": True}
    specs = decoder_weight_specs(read_config("test", tied))
    assert "lm_head.weight" in shapes()
    check_tensors("test", specs, shapes(**{"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}))


def test_every_weight_is_made_of_as_many_numbers_as_its_sources_hold():
    for case in CASES:
        for spec in decoder_weight_specs(read_config("test", case.hub_config)):
            assert np.prod(spec.shape) == sum(np.prod(source.shape) for source in spec.sources)
            assert len(spec.axes) == len(spec.shape)


TIED = (WeightSpec("embed", ("vocab", "embed"), (4, 2), (TensorSource("embed.weight", (4, 2), (4, 2)),)),)


UNTIED = (*TIED, WeightSpec("head", ("vocab", "embed"), (4, 2), (TensorSource("lm_head.weight", (4, 2), (4, 2)),)))


def test_a_second_copy_of_a_tied_table_is_let_be_and_no_other():
    check_tensors("test", TIED, {"embed.weight": (4, 2)})
    check_tensors("test", TIED, {"embed.weight": (4, 2), "lm_head.weight": (4, 2)})
    check_tensors("test", UNTIED, {"embed.weight": (4, 2), "lm_head.weight": (4, 2)})
    with pytest.raises(MalformedCheckpoint, match="x: 2 tensors such as this one") as caught:
        check_tensors("test", TIED, {"embed.weight": (4, 2), "x": (1,), "lm_head.weight": (4, 2), "y": (1,)})
    assert (caught.value.uri, caught.value.file) == ("test", "x")


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({}, r"embed.weight: is missing.* \[4, 2\]"),
        ({"embed.weight": (2, 4)}, r"embed.weight: has shape \[2, 4\]; .* \[4, 2\]"),
    ],
)
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(shapes, reason):
    with pytest.raises(MalformedCheckpoint, match=reason) as caught:
        check_tensors("test", TIED, shapes)
    assert (caught.value.uri, caught.value.file) == ("test", "embed.weight")


def test_only_the_table_of_rotations_is_computed_anew():
    check_tensors("test", TIED, {"embed.weight": (4, 2), "layers.0.rotary_emb.inv_freq": (1,)})
    with pytest.raises(MalformedCheckpoint):
        check_tensors("test", TIED, {"embed.weight": (4, 2), "layers.0.rotary_emb.inv_freq.more": (1,)})
