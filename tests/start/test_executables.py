"""The executables of a start: how many are compiled at once, and bundles for a GPU that were made without it."""

import logging
import os
from types import SimpleNamespace

import pytest

from service.bundles.bundle import Bundle, Manifest, describe_file
from service.bundles.folder import BundleFolder
from service.bundles.lookup import BundlePlaces
from service.observability.metrics import Metrics
from service.start.executables import find_bundle, num_compile_threads
from service.start.progress import StartProgress
from tests.device.devices import NamedDevice
from tests.start.test_spec import plan

ABSENT = SimpleNamespace(local_devices=list)
CODE = b"none of this is unpickled here"


@pytest.fixture(scope="module")
def spec():
    return plan(1, max_num_seqs=1)


@pytest.fixture
def places(tmp_path):
    return BundlePlaces([BundleFolder(tmp_path)], Metrics())


def bundle_of(spec, key):
    names = spec.names.every
    files = {name: describe_file(name, CODE, 1.0) for name in names}
    return Bundle(Manifest(key.digest, key.inputs, files, {}), dict.fromkeys(names, CODE))


def find(spec, places, **options):
    return find_bundle(spec, places, StartProgress(Metrics()), **options).bundle


def test_a_start_takes_it_and_says_what_is_missing(spec, places, caplog):
    places.store(bundle_of(spec, spec.key.without_device))
    with caplog.at_level(logging.WARNING):
        assert find(spec, places).manifest.key == spec.key.without_device.digest
    [record] = [record for record in caplog.records if "compiled without the device" in record.message]
    assert record.missing == spec.key.digest


def test_prewarm_on_the_gpu_makes_a_better_one_which_starts_prefer(spec, places, caplog):
    places.store(bundle_of(spec, spec.key.without_device))
    assert find(spec, places, accepts_untuned=False) is None
    places.store(bundle_of(spec, spec.key))
    with caplog.at_level(logging.WARNING):
        assert find(spec, places).manifest.key == spec.key.digest
    assert "compiled without the device" not in caplog.text


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (NamedDevice(0, "gpu", limit_bytes=21_000_000_000), 2),  # an L4; kernels are timed beside the weights
        (NamedDevice(0, "gpu", limit_bytes=135_000_000_000), 6),
        (NamedDevice(0, "gpu", client=ABSENT), 16),
        (NamedDevice(0, "tpu"), 16),
        (NamedDevice(0, "cpu"), 16),
    ],
)
def test_a_gpu_that_is_here_is_compiled_for_by_as_many_threads_as_it_has_room_for(device, expected, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert num_compile_threads(device) == expected
