"""How much memory each of some devices has."""

import pytest

from service.device.memory import device_memory_bytes, expects_cpu
from tests.device.devices import NamedDevice, host


def test_the_smallest_accelerator_counts():
    devices = [NamedDevice(0, limit_bytes=24_000), NamedDevice(1, limit_bytes=23_000), NamedDevice(2)]
    assert device_memory_bytes(devices) == 23_000
    assert device_memory_bytes(devices[:1]) == 24_000


def test_devices_of_one_processor_share_its_memory():
    alone = device_memory_bytes(host(1, "cpu"))
    assert alone > 1_000_000_000
    assert device_memory_bytes(host(4, "cpu")) == alone // 4


@pytest.mark.parametrize(("files", "expected"), [(("none-such[0-9]*",), True), (("none-such", "nul[l]"), False)])
def test_a_driver_file_makes_an_accelerator_likely(files, expected):
    assert expects_cpu(files) == expected
