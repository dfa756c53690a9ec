"""The discovery of devices, in a process that has not used jax yet."""

import subprocess
import sys

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
