"""Memory for weights is populated while it is written."""

import mmap
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from service.weights.assembly import ALIGNMENT_BYTES
from service.weights.populated import populated_memory

MIB = 1024 * 1024
TIMEOUT_S = 30

only_on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere pages are populated when they are touched"
)


def resident_bytes(address: int, num_bytes: int) -> int:
    """Return how much memory from an address on has pages. Source: Linux, Documentation/admin-guide/mm/pagemap.rst."""
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        entries = np.frombuffer(file.read(num_bytes // mmap.PAGESIZE * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE


def wait_until_resident(address: int, num_bytes: int) -> None:
    give_up_s = time.monotonic() + TIMEOUT_S
    while resident_bytes(address, num_bytes) < num_bytes:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


@only_on_linux
def test_memory_is_populated_before_it_is_touched():
    memory = populated_memory(64 * MIB)
    wait_until_resident(memory.ctypes.data, 64 * MIB)
    assert memory.ctypes.data % ALIGNMENT_BYTES == 0


@only_on_linux
def test_a_process_may_end_while_memory_is_populated():
    memory = populated_memory(256 * MIB)
    [thread] = [thread for thread in threading.enumerate() if thread.name == "populate"]
    assert thread.daemon
    thread.join(TIMEOUT_S)
    assert resident_bytes(memory.ctypes.data, 256 * MIB) == 256 * MIB


@only_on_linux
def test_bytes_that_are_written_while_memory_is_populated_stay():
    values = np.random.default_rng(0).integers(0, 256, 32 * MIB, np.uint8)
    for _ in range(5):
        memory = populated_memory(values.nbytes)
        memory[:] = values
        wait_until_resident(memory.ctypes.data, memory.nbytes)
        assert np.array_equal(memory, values)


@pytest.mark.parametrize("num_bytes", [0, 1, mmap.PAGESIZE + 1])
def test_memory_has_the_requested_size(num_bytes):
    assert populated_memory(num_bytes).nbytes == num_bytes


def test_what_follows_is_called_once_all_pages_are_there():
    followed = threading.Event()
    memory = populated_memory(8 * MIB, lambda _: followed.set())
    assert followed.wait(TIMEOUT_S)
    assert resident_bytes(memory.ctypes.data, 8 * MIB) == 8 * MIB
