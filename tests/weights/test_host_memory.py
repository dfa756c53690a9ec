"""Host memory: staged bytes stay within their bound, and memory for weights is populated while it is written."""

import mmap
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from service.weights.assembly import ALIGNMENT_BYTES, populated_memory
from service.weights.staging import HostMemoryBudget

MIB = 1024 * 1024
TIMEOUT_S = 30

only_on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere pages are populated when they are touched"
)


def no_check() -> None:
    pass


def test_a_reservation_that_does_not_fit_waits_until_bytes_are_given_back():
    budget = HostMemoryBudget(100)
    waits, order = threading.Event(), []

    def reserve() -> None:
        with budget.reserve(30, waits.set):
            order.append("reserved")

    with budget.reserve(80, no_check):
        thread = threading.Thread(target=reserve)
        thread.start()
        assert waits.wait(TIMEOUT_S)
        order.append("given back")
        budget.release(80)
        thread.join(TIMEOUT_S)
    assert order == ["given back", "reserved"]


def test_a_reservation_larger_than_the_bound_is_granted_alone():
    with HostMemoryBudget(100).reserve(1000, no_check):
        pass


def test_the_check_ends_a_wait():
    budget = HostMemoryBudget(100)

    def fail() -> None:
        raise TimeoutError

    start_s = time.monotonic()
    with budget.reserve(100, no_check), pytest.raises(TimeoutError), budget.reserve(1, fail):
        pass
    assert time.monotonic() - start_s < 1  # a start that is cancelled ends at once


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


class Waiter:
    """A thread that reserves bytes; says when it waits and when it has them."""

    def __init__(self, budget: HostMemoryBudget, num_bytes: int) -> None:
        self.waits, self.has, self.may_end = threading.Event(), threading.Event(), threading.Event()

        def reserve() -> None:
            with budget.reserve(num_bytes, self.waits.set):
                self.has.set()
                self.may_end.wait(TIMEOUT_S)

        threading.Thread(target=reserve, daemon=True).start()


def granted_at_once(budget: HostMemoryBudget, num_bytes: int) -> bool:
    waiter = Waiter(budget, num_bytes)
    while not waiter.has.is_set() and not waiter.waits.is_set():
        waiter.has.wait(0.01)
    waiter.may_end.set()
    return not waiter.waits.is_set()


def test_bytes_are_granted_up_to_the_bound():
    budget = HostMemoryBudget(100)
    with budget.reserve(60, pytest.fail):
        assert granted_at_once(budget, 40)
    budget = HostMemoryBudget(100)
    with budget.reserve(60, pytest.fail):
        assert not granted_at_once(budget, 41)


def test_bytes_stay_held_after_the_body_until_they_are_given_back():
    budget = HostMemoryBudget(100)
    with budget.reserve(100, pytest.fail):
        pass
    with budget.reserve(0, pytest.fail):
        assert not granted_at_once(budget, 1)
    budget = HostMemoryBudget(100)
    with budget.reserve(100, pytest.fail):
        pass
    budget.release(40)
    with budget.reserve(0, pytest.fail):
        assert granted_at_once(budget, 40)


def test_nothing_is_granted_at_any_time():
    budget = HostMemoryBudget(0)
    with budget.reserve(10, pytest.fail):
        assert granted_at_once(budget, 0)


def test_one_that_is_alone_is_granted_more_than_the_bound_even_while_bytes_are_held():
    budget = HostMemoryBudget(100)
    with budget.reserve(100, pytest.fail):
        pass
    assert granted_at_once(budget, 500)


def test_the_end_of_a_body_wakes_one_that_waits():
    budget = HostMemoryBudget(100)
    with budget.reserve(100, pytest.fail):
        waiter = Waiter(budget, 50)
        assert waiter.waits.wait(TIMEOUT_S)
        assert not waiter.has.is_set()
    assert waiter.has.wait(TIMEOUT_S)
    waiter.may_end.set()


def test_a_body_that_fails_is_at_work_no_longer():
    budget = HostMemoryBudget(100)
    with pytest.raises(KeyError), budget.reserve(100, pytest.fail):
        raise KeyError
    assert granted_at_once(budget, 100)


def test_one_waits_as_long_as_any_other_is_at_work():
    budget = HostMemoryBudget(100)
    with budget.reserve(50, pytest.fail):
        with budget.reserve(40, pytest.fail):
            pass
        assert not granted_at_once(budget, 20)
