"""The host's memory on the way to a device: bounded, given back, and not needed at all where the device is the host."""

import threading
import time

import jax
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.weights.assembly import Assembly
from service.weights.host_memory import HostMemoryBudget
from tests.checkpoint.streamed import DTYPE, SPECS, TENSORS, made_at_once

MESH = DeviceMesh((jax.devices()[0],))


def no_check() -> None:
    pass


def test_who_does_not_fit_waits_until_bytes_are_given_back():
    memory = HostMemoryBudget(100)
    order = []
    with memory.reserve(80, no_check):

        def enter() -> None:
            with memory.reserve(30, no_check):
                order.append("entered")

        thread = threading.Thread(target=enter)
        thread.start()
        time.sleep(0.05)
        order.append("given back")
        memory.give_back(80)
        thread.join(5)
    assert order == ["given back", "entered"]


def test_one_that_is_larger_than_all_goes_through_alone():
    with HostMemoryBudget(100).reserve(1000, no_check):
        pass


def test_who_waits_in_vain_is_stopped():
    memory = HostMemoryBudget(100)

    def refuse() -> None:
        raise TimeoutError

    with memory.reserve(100, no_check), pytest.raises(TimeoutError), memory.reserve(1, refuse):
        pass


def filled(assembly: Assembly) -> None:
    for name, tensor in TENSORS.items():
        assembly.reserve([name])
        assembly.write(name, 0, tensor.reshape(-1))


def test_weights_that_stay_on_the_host_are_the_memory_that_a_cpu_takes_over():
    assembly = Assembly(SPECS, DTYPE, None)
    filled(assembly)
    arrays = assembly.weights()
    weights = MESH.alias_host_arrays(arrays)
    assert [w.unsafe_buffer_pointer() for w in weights.values()] == [a.ctypes.data for a in arrays.values()]
    for spec in SPECS:
        np.testing.assert_array_equal(weights[spec.name], made_at_once(spec, TENSORS, DTYPE))


def test_elsewhere_a_weight_takes_memory_when_it_begins_and_gives_it_back_when_it_is_placed():
    given_back: list[int] = []
    assembly = Assembly(SPECS, DTYPE, MESH, on_placed=given_back.append)
    taken = 0
    for name, tensor in TENSORS.items():
        taken += assembly.reserve([name])
        assert assembly.reserve([name]) == 0
        assembly.write(name, 0, tensor.reshape(-1))
        assert sum(given_back) <= taken
    assert taken == sum(given_back) == sum(weight.nbytes for weight in assembly.weights().values())
    for spec in SPECS:
        np.testing.assert_array_equal(assembly.weights()[spec.name], made_at_once(spec, TENSORS, DTYPE))
