"""Memory that is got ready while it is written."""

import mmap
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from service.weights.host_memory import ALIGNMENT_BYTES, populated_memory

MIB = 1024 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere pages come when they are touched")


def resident_bytes(address: int, num_bytes: int) -> int:
    """Return how much of the memory from there on is real. Source: Linux, Documentation/admin-guide/mm/pagemap.rst"""
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        entries = np.frombuffer(file.read(num_bytes // mmap.PAGESIZE * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE


def wait_until_resident(address: int, num_bytes: int) -> None:
    give_up_s = time.monotonic() + 30
    while resident_bytes(address, num_bytes) < num_bytes:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def test_it_becomes_real_by_itself():
    memory = populated_memory(64 * MIB)
    wait_until_resident(memory.ctypes.data, 64 * MIB)
    assert memory.ctypes.data % ALIGNMENT_BYTES == 0


def test_what_is_written_stays_while_the_rest_is_got_ready():
    for _ in range(20):
        memory = populated_memory(64 * MIB)
        memory[:] = values = np.random.default_rng(0).integers(0, 256, memory.nbytes, np.uint8)
        wait_until_resident(memory.ctypes.data, memory.nbytes)
        assert np.array_equal(memory, values)


@pytest.mark.parametrize("num_bytes", [0, 1, mmap.PAGESIZE + 1])
def test_it_has_as_many_bytes_as_were_asked_for(num_bytes):
    assert populated_memory(num_bytes).nbytes == num_bytes
