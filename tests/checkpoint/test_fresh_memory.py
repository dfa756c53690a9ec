"""Memory that is got ready before it is known how much of it is needed."""

import mmap
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from service.checkpoint.fresh_memory import ALIGNMENT_BYTES, FreshMemory

MIB = 1024 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere pages come when they are touched")


def resident_bytes(address: int, num_bytes: int = 64 * MIB) -> int:
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


def address_of(memory: FreshMemory) -> int:
    return memory._piece.memory.ctypes.data


def test_what_will_likely_be_taken_is_there_before_anybody_asks():
    memory = FreshMemory(64 * MIB)
    wait_until_resident(address := address_of(memory), 64 * MIB)
    taken = memory.take(64 * MIB)
    assert (taken.ctypes.data, taken.nbytes, address % ALIGNMENT_BYTES) == (address, 64 * MIB, 0)


def test_what_turns_out_not_to_be_needed_is_let_go():
    memory = FreshMemory(64 * MIB)
    wait_until_resident(address := address_of(memory), 64 * MIB)
    taken = memory.take(8 * MIB)
    assert taken.nbytes == 8 * MIB
    assert resident_bytes(address) == 8 * MIB


def test_memory_that_nobody_took_is_given_back():
    memory = FreshMemory(64 * MIB)
    wait_until_resident(address := address_of(memory), 32 * MIB)
    memory.give_back()
    assert resident_bytes(address) == 0


@pytest.mark.parametrize("needed_bytes", [96 * MIB, 200 * MIB])  # with addresses to spare, and beyond them
def test_more_than_was_likely_can_be_taken(needed_bytes):
    memory = FreshMemory(64 * MIB)
    taken = memory.take(needed_bytes)
    assert taken.nbytes == needed_bytes
    wait_until_resident(taken.ctypes.data, needed_bytes)


def test_what_is_written_stays_while_the_rest_is_got_ready():
    for _ in range(20):
        taken = FreshMemory(16 * MIB).take(64 * MIB)
        taken[:] = values = np.random.default_rng(0).integers(0, 256, taken.nbytes, np.uint8)
        wait_until_resident(taken.ctypes.data, taken.nbytes)
        assert np.array_equal(taken, values)


def test_a_second_taker_gets_memory_of_its_own():
    memory = FreshMemory(MIB)
    first, second = memory.take(MIB), memory.take(MIB)
    assert not np.shares_memory(first, second)
