"""The usable memory of devices."""

import os
from types import SimpleNamespace

import pytest

from service.device.chips import L4, V5E, V6E
from service.device.memory import expects_cpu, usable_memory_bytes
from service.errors import UnknownDeviceMemory
from service.settings.compiler import (
    ASYNC_DISPATCH_VARIABLE,
    POOL_VARIABLES,
    dispatch_to_gpus_asynchronously,
    size_gpu_pool,
)
from tests.device.devices import NamedDevice, host


def test_the_smallest_accelerator_counts():
    devices = [NamedDevice(0, "tpu", limit_bytes=24_000), NamedDevice(1, "tpu", limit_bytes=23_000)]
    assert usable_memory_bytes(devices) == 20_700
    assert usable_memory_bytes(devices[:1], 0.5) == 12_000


def test_a_fraction_of_a_gpu_is_that_of_its_pool():
    device = NamedDevice(0, "gpu", limit_bytes=10_000)  # of the pool
    assert usable_memory_bytes([device]) == usable_memory_bytes([device], 0.5) == 9_500


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("0.8", None)),
        ({POOL_VARIABLES[0]: "0.6"}, ("0.6", None)),
        ({POOL_VARIABLES[1]: "0.6"}, (None, "0.6")),  # both together are an error of jaxlib's
    ],
)
def test_the_pool_is_sized_unless_the_operator_has_sized_it(monkeypatch, given, expected):
    for name in POOL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    size_gpu_pool(0.8)
    found = tuple(os.environ.get(name) for name in POOL_VARIABLES)
    monkeypatch.undo()
    assert found == expected


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({ASYNC_DISPATCH_VARIABLE: "0"}, "0")])
def test_a_gpu_is_dispatched_to_asynchronously_unless_the_operator_says_otherwise(monkeypatch, given, expected):
    monkeypatch.delenv(ASYNC_DISPATCH_VARIABLE, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    dispatch_to_gpus_asynchronously()
    found = os.environ[ASYNC_DISPATCH_VARIABLE]
    monkeypatch.undo()
    assert found == expected


@pytest.mark.parametrize(("chip", "pool", "share"), [(V6E, 1, 1), (L4, 0.5, 0.5 * 0.95)])
@pytest.mark.parametrize(("reported", "planned"), [(0.995, 1), (1.005, 1), (0.98, 0.98), (1.02, 1.02)])
def test_a_device_that_reports_about_what_its_kind_has_is_planned_alike(chip, pool, share, reported, planned):
    limit_bytes = int(reported * pool * chip.memory_bytes)
    device = NamedDevice(0, chip.platform, chip.device_kind, limit_bytes=limit_bytes)
    assert usable_memory_bytes([device], pool) == pytest.approx(planned * share * chip.memory_bytes, abs=2)


@pytest.mark.parametrize(("chip", "fraction", "share"), [(V5E, None, 0.9), (V5E, 0.5, 0.5), (L4, None, 0.9 * 0.95)])
def test_a_device_that_is_only_compiled_for_has_what_its_kind_has(chip, fraction, share):
    device = NamedDevice(0, chip.platform, chip.device_kind, client=SimpleNamespace(local_devices=list))
    assert usable_memory_bytes([device], fraction) == pytest.approx(share * chip.memory_bytes, abs=2)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_an_accelerator_that_reports_nothing_stops_the_start(platform):
    devices = [NamedDevice(0, platform, "Odd", limit_bytes=24_000), NamedDevice(1, platform, "Odd")]
    with pytest.raises(UnknownDeviceMemory, match="'Odd' does not report its memory") as error:
        usable_memory_bytes(devices)
    assert (error.value.platform, error.value.device_kind) == (platform, "Odd")


def test_devices_of_one_processor_share_its_memory():
    alone = usable_memory_bytes(host(1, "cpu"), 1.0)
    assert alone > 1_000_000_000
    assert usable_memory_bytes(host(1, "cpu")) == alone // 2
    assert usable_memory_bytes(host(4, "cpu"), 1.0) == alone // 4


@pytest.mark.parametrize(("files", "expected"), [(("none-such[0-9]*",), True), (("none-such", "nul[l]"), False)])
def test_a_driver_file_makes_an_accelerator_likely(files, expected):
    assert expects_cpu(files) == expected
