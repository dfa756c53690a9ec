"""Staged arrays stay within their limit, and an accelerator reads them from one pinned region."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.weights import staging
from service.weights.staging import RANGE_BYTES, StagingMemory

TIMEOUT_S = 30


def no_check() -> None:
    pass


class Body:
    """A thread that is at work once it has its array; says when it waits for it."""

    def __init__(self, memory: StagingMemory, num_bytes: int) -> None:
        self.waits, self.is_at_work, self.may_end = threading.Event(), threading.Event(), threading.Event()
        self.array = np.empty(0, np.uint8)

        def obtain() -> None:
            self.array = memory.allocate(num_bytes, self.waits.set)

        def run() -> None:
            with memory.at_work(obtain):
                self.is_at_work.set()
                self.may_end.wait(TIMEOUT_S)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        while not self.is_at_work.is_set() and not self.waits.is_set():
            time.sleep(0.001)

    @property
    def has_waited(self) -> bool:
        return self.waits.is_set()

    def end(self) -> None:
        self.may_end.set()
        self._thread.join(TIMEOUT_S)


def test_arrays_are_allocated_up_to_the_limit_and_the_next_one_waits_for_a_release():
    memory = StagingMemory(100)
    first = Body(memory, 60)
    second = Body(memory, 40)
    assert not second.has_waited
    third = Body(memory, 1)
    assert third.has_waited
    assert not third.is_at_work.is_set()
    memory.release(first.array)
    assert third.is_at_work.wait(TIMEOUT_S)
    for body in (first, second, third):
        body.end()


def test_an_array_is_held_after_the_body_that_allocated_it():
    memory = StagingMemory(100)
    first = Body(memory, 100)
    first.end()
    with memory.at_work(None):
        second = Body(memory, 1)
        assert second.has_waited
        memory.release(first.array)
        assert second.is_at_work.wait(TIMEOUT_S)
    second.end()


def test_an_array_larger_than_the_limit_is_allocated_while_nobody_is_at_work():
    memory = StagingMemory(100)
    held = Body(memory, 100)
    waiting = Body(memory, 1000)
    assert waiting.has_waited
    assert not waiting.is_at_work.is_set()
    held.end()
    assert waiting.is_at_work.wait(TIMEOUT_S)
    assert waiting.array.nbytes == 1000
    waiting.end()


def test_nothing_needs_no_room():
    memory = StagingMemory(0)
    with memory.at_work(None):
        empty = memory.allocate(0, pytest.fail)
    memory.release(empty)
    assert empty.nbytes == 0


def test_one_that_waits_does_not_stop_those_that_need_no_memory():
    memory = StagingMemory(100)
    held = Body(memory, 100)
    waiting = Body(memory, 50)
    with memory.at_work(None):
        assert not waiting.is_at_work.is_set()
    memory.release(held.array)
    assert waiting.is_at_work.wait(TIMEOUT_S)
    held.end()
    waiting.end()


def test_the_check_ends_a_wait():
    memory = StagingMemory(100)
    held = Body(memory, 100)

    def fail() -> None:
        raise TimeoutError

    start_s = time.monotonic()
    with pytest.raises(TimeoutError), memory.at_work(lambda: allocate_one(memory, fail)):
        pass
    assert time.monotonic() - start_s < TIMEOUT_S  # a start that is cancelled ends at once
    held.end()


def allocate_one(memory: StagingMemory, check: Callable[[], None]) -> None:
    memory.allocate(1, check)


def test_a_body_that_fails_is_at_work_no_longer():
    memory = StagingMemory(10)
    with pytest.raises(KeyError), memory.at_work(lambda: allocate_one(memory, no_check)):
        raise KeyError
    assert not Body(memory, 100).has_waited


class Client:
    """Stands for the client of an accelerator, which this machine lacks: it pins memory, or cannot."""

    def __init__(self, error: Exception | None = None) -> None:
        self.pinned: dict[int, int] = {}
        self.has_pinned = threading.Event()
        self._error = error

    def dma_map(self, address: int, size: int) -> None:
        if self._error is not None:
            raise self._error
        self.pinned[address] = size
        self.has_pinned.set()

    def dma_unmap(self, address: int) -> None:
        del self.pinned[address]


def mesh_of(client: object, platform: str = "gpu") -> Any:
    return SimpleNamespace(platform=platform, devices=[SimpleNamespace(client=client)] * 2)


def address_of(array: np.ndarray) -> int:
    return array.ctypes.data


def test_arrays_for_an_accelerator_are_ranges_of_one_pinned_region():
    client, memory = Client(), StagingMemory(16 * RANGE_BYTES)
    with memory.pinned_for(mesh_of(client)):
        arrays = [memory.allocate(size, no_check) for size in (1, RANGE_BYTES + 1, 13 * RANGE_BYTES)]
        assert client.has_pinned.wait(TIMEOUT_S)
        [(begin, size)] = client.pinned.items()
        assert size == 16 * RANGE_BYTES
        assert [address_of(array) - begin for array in arrays] == [0, RANGE_BYTES, 3 * RANGE_BYTES]
        assert [array.nbytes for array in arrays] == [1, RANGE_BYTES + 1, 13 * RANGE_BYTES]
        for number, array in enumerate(arrays):
            array[:] = number
        assert [set(array.tolist()) for array in arrays] == [{0}, {1}, {2}]
        for array in arrays:
            memory.release(array.view(np.int8))
    assert client.pinned == {}


def test_ranges_are_used_again_and_neighbours_become_one():
    memory = StagingMemory(8 * RANGE_BYTES)
    with memory.pinned_for(mesh_of(Client())):
        arrays = [memory.allocate(2 * RANGE_BYTES, no_check) for _ in range(4)]
        for index in (1, 3, 2):
            memory.release(arrays[index])
        assert address_of(memory.allocate(6 * RANGE_BYTES, no_check)) == address_of(arrays[1])


def test_an_array_waits_for_adjacent_ranges_and_is_outside_of_the_region_if_nobody_can_free_them():
    memory = StagingMemory(4 * RANGE_BYTES)
    with memory.pinned_for(mesh_of(Client())):
        arrays = [memory.allocate(RANGE_BYTES, no_check) for _ in range(4)]
        memory.release(arrays[0])
        memory.release(arrays[2])
        with memory.at_work(None):
            body = Body(memory, 2 * RANGE_BYTES)
            assert body.has_waited
        assert body.is_at_work.wait(TIMEOUT_S)
        inside = range(address_of(arrays[0]), address_of(arrays[0]) + 4 * RANGE_BYTES)
        assert address_of(body.array) not in inside
        memory.release(body.array)
        body.end()
        memory.release(arrays[1])
        assert address_of(memory.allocate(3 * RANGE_BYTES, no_check)) in inside


@pytest.mark.parametrize("client", [Client(RuntimeError("UNIMPLEMENTED: DmaMap is not supported.")), object()])
def test_where_memory_cannot_be_pinned_the_region_is_used_as_it_is(client, caplog):
    memory = StagingMemory(4 * RANGE_BYTES)
    with caplog.at_level("INFO"), memory.pinned_for(mesh_of(client)):
        first = memory.allocate(RANGE_BYTES, no_check)
        assert address_of(memory.allocate(RANGE_BYTES, no_check)) == address_of(first) + RANGE_BYTES
    assert "host memory is not pinned" in caplog.text


def test_arrays_that_a_cpu_may_keep_are_not_used_again():
    client, memory = Client(), StagingMemory(4 * RANGE_BYTES)
    with memory.pinned_for(mesh_of(client, "cpu")), memory.at_work(None):
        kept = memory.allocate(RANGE_BYTES, no_check)
        kept[:] = 7
        memory.release(kept)
        memory.allocate(4 * RANGE_BYTES, no_check)[:] = 0
    assert set(kept.tolist()) == {7}
    assert client.pinned == {}


@pytest.mark.parametrize(
    ("stated", "largest", "host", "expected"),
    [
        (100, 1000, 64_000, 100),
        (None, 1050, 32_768, 1050 + 512),
        (None, 2100, 16_384, 2048),
        (None, 100, 2048, 512),
    ],
)
def test_the_default_holds_the_largest_weight_beside_others_within_a_part_of_the_hosts_memory(
    monkeypatch, stated, largest, host, expected
):
    mebibyte = 1024 * 1024
    monkeypatch.setattr(staging, "host_memory_bytes", lambda: host * mebibyte)
    found = staging.staging_bytes(None if stated is None else stated * mebibyte, largest * mebibyte)
    assert found == expected * mebibyte
