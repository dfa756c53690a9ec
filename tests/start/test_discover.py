"""The discovery of devices, in a process that has not used jax yet."""

import subprocess
import sys

import pytest

from service.errors import UnusableAccelerator
from service.start.discover import check_platform
from tests.device.devices import NamedDevice

# The GIL may pass to another thread at each audit event, so a thread that sleeps there exposes what must not overlap.
FIRST_USERS = """
import sys, threading, time
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.context import StartContext
from service.start.discover import find_devices
from service.start.progress import StartProgress

metrics = Metrics()
devices = find_devices(StartContext(Settings(), metrics, StartProgress(metrics))).devices

import jax, numpy as np
place = jax.sharding.SingleDeviceSharding(devices[0])
are_ready = threading.Barrier(2)
placed = []

def use():
    are_ready.wait()
    placed.append(jax.make_array_from_callback((1,), place, lambda _: np.ones(1)))

def sleep_here(event, _):
    if threading.get_ident() in {user.ident for user in users}:
        time.sleep(0.01)

users = [threading.Thread(target=use) for _ in range(2)]
sys.addaudithook(sleep_here)
for user in users:
    user.start()
for user in users:
    user.join()
assert len(placed) == 2
"""


def test_threads_may_place_arrays_at_the_same_time_once_the_devices_are_found():
    done = subprocess.run([sys.executable, "-c", FIRST_USERS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def gpu_machine(tmp_path, monkeypatch):
    """Return the device files of a machine with an NVIDIA GPU, on which JAX's plugin for it is installed."""
    (tmp_path / "jax_cuda13_plugin").mkdir()
    (tmp_path / "jax_cuda13_plugin" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    files = tmp_path / "dev"
    files.mkdir()
    for name in ("nvidia0", "nvidiactl"):
        (files / name).touch()
    return files


def test_a_gpu_whose_driver_jax_cannot_use_is_not_left_idle_in_silence(gpu_machine):
    with pytest.raises(UnusableAccelerator, match="ACCELERATOR=cuda12") as error:
        check_platform(NamedDevice(0, "cpu"), gpu_machine)
    assert error.value.device_file.endswith("nvidia0")
    check_platform(NamedDevice(0, "gpu"), gpu_machine)


def test_a_cpu_that_is_asked_for_or_alone_is_served_on(gpu_machine, monkeypatch, tmp_path):
    check_platform(NamedDevice(0, "cpu"), tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    check_platform(NamedDevice(0, "cpu"), gpu_machine)
