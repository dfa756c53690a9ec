"""The number of devices that are used, and the axes that are split over them."""

import pytest
from jax.sharding import PartitionSpec

from service.device.mesh import DeviceMesh, choose_mesh
from service.errors import SettingsError
from tests.device.devices import host

SIZES = {"num_attention_heads": 12, "intermediate_size": 64}


def chosen(number: int, requested: int | None = None, platform: str = "gpu", **sizes: int) -> int:
    return choose_mesh(host(number, platform), tensor_parallel=requested, sizes=SIZES | sizes).num_devices


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_all_accelerators_are_used_that_the_model_divides_by(platform):
    assert [chosen(number, platform=platform) for number in (1, 2, 3, 4, 8)] == [1, 2, 2, 4, 4]
    assert chosen(8, platform=platform, num_attention_heads=32) == 8
    assert chosen(8, platform=platform, intermediate_size=61) == 1


def test_a_processor_is_one_device_unless_more_are_asked_for():
    assert chosen(8, platform="cpu") == 1
    assert chosen(8, 4, platform="cpu") == 4


def test_fewer_than_there_are_may_be_asked_for():
    mesh = choose_mesh(host(8), tensor_parallel=2, sizes=SIZES)
    assert [device.id for device in mesh.devices] == [0, 1]
    assert mesh.key_inputs == {"shape": {"model": 2}, "device_ids": [0, 1]}


@pytest.mark.parametrize(("number", "requested"), [(8, 3), (8, 8), (2, 4)])
def test_an_impossible_number_is_refused_with_the_numbers_that_are_possible(number, requested):
    with pytest.raises(SettingsError) as refusal:
        chosen(number, requested)
    message = str(refusal.value)
    assert message.startswith(f"TENSOR_PARALLEL: is {requested}. This host has {number} devices (gpu),")
    assert "num_attention_heads = 12" in message
    assert "intermediate_size = 64" in message
    assert message.endswith("Possible values: 1, 2, 4." if number == 8 else "Possible values: 1, 2.")


def test_axes_are_split_by_their_names_where_they_divide():
    mesh = DeviceMesh(tuple(host(4)))
    assert mesh.partition(("embed", "kv_head", "qkv_group", "head_dim"), (64, 8, 4, 16)) == PartitionSpec(
        None, "model", None, None
    )
    assert mesh.partition(("mlp", "embed"), (64, 64)) == PartitionSpec("model", None)
    assert mesh.partition(("vocab", "embed"), (128, 64)) == PartitionSpec("model", None)
    assert mesh.partition(("vocab", "embed"), (49_153, 64)) == PartitionSpec(None, None)


@pytest.mark.parametrize(("platform", "is_whole"), [("cpu", False), ("tpu", False), ("gpu", True)])
def test_only_a_gpu_runs_a_step_as_one_program(platform, is_whole):
    assert DeviceMesh(tuple(host(1, platform))).prefers_whole_steps is is_whole
