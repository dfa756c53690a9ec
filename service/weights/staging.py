"""Host memory for weights that wait for the device, within a limit.

An accelerator's driver copies pageable memory through a buffer of its own, one thread at a time. Pinned memory it reads
itself, but pinning takes as long as a copy, so one region is pinned and used for one weight after another. On an H200
that is 18 GB/s from the page cache to the device in place of 3 (2026-11-26).
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from service.device.memory import host_memory_bytes
from service.weights.populated import populated_memory

if TYPE_CHECKING:
    from service.device.mesh import DeviceMesh

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.2  # between a waiting thread's checks for cancellation and the deadline
RANGE_BYTES = 4096  # ranges of the region begin and end at multiples of it
# If none are stated: the bytes for the weights that are read beside the largest, and the part of the host's memory that
# a load takes at most. Alone, an embedding of a gigabyte holds up all others for as long as the link takes for it.
BESIDE_LARGEST_BYTES = 512 * 1024 * 1024
HOST_PARTS = 8


def staging_bytes(stated: int | None, largest_bytes: int) -> int:
    """Return how much host memory the weights of a load may take while they wait for the device.

    Args:
        stated: STREAM_STAGING_BYTES; None for room for the largest weight beside others.
        largest_bytes: the size of the largest weight.
    """
    if stated is not None:
        return stated
    return max(BESIDE_LARGEST_BYTES, min(largest_bytes + BESIDE_LARGEST_BYTES, host_memory_bytes() // HOST_PARTS))


class StagingMemory:
    """Arrays of host memory, shared by threads: a thread that needs more than is left waits for the others."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: dict[int, int] = {}  # the bytes of each array, by its address
        self._num_at_work = 0
        self._obtaining = threading.Lock()
        self._changed = threading.Condition()
        self._region: _Region | None = None

    @contextmanager
    def pinned_for(self, mesh: "DeviceMesh | None") -> Iterator[None]:
        """Allocate arrays from a region that the devices read directly, until the end of the body.

        Devices of a CPU may keep an array's memory themselves, so for them, as for None, each array is new.
        """
        if mesh is None or mesh.platform == "cpu":
            yield
            return
        self._region = _Region(self._max_bytes, mesh)
        try:
            yield
        finally:
            self._region.unpin()
            self._region = None

    @contextmanager
    def at_work(self, obtain: Callable[[], None] | None) -> Iterator[None]:
        """Run a body that fills arrays, which are released by it or later by others.

        Args:
            obtain: allocates the arrays that the body is the first to need; None if all are there.
        """
        if obtain is None:
            self._count(1)
        else:
            with self._obtaining:
                obtain()
                self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def allocate(self, num_bytes: int, check: Callable[[], None]) -> np.ndarray:
        """Return uint8 of shape [num_bytes], uninitialized, once it fits; at once if nobody is at work to release some.

        Args:
            num_bytes: the size.
            check: called while waiting; raises to end the wait.
        """
        with self._changed:
            while (array := self._array(num_bytes)) is None:
                self._changed.wait(CHECK_INTERVAL_S)
                check()
            if num_bytes:
                self._held[array.ctypes.data] = num_bytes
            return array

    def release(self, array: np.ndarray) -> None:
        """Take an array back, in whatever shape and dtype; nobody may use it any more."""
        if not array.nbytes:
            return
        address = array.ctypes.data
        with self._changed:
            num_bytes = self._held.pop(address)
            if self._region is not None:
                self._region.give_back(address, num_bytes)
            self._changed.notify_all()

    def _array(self, num_bytes: int) -> np.ndarray | None:
        fits = sum(self._held.values()) + num_bytes <= self._max_bytes
        array = self._region.take(num_bytes) if fits and num_bytes and self._region is not None else None
        if array is not None:
            return array
        may_wait = num_bytes and self._num_at_work and (not fits or self._region is not None)
        return None if may_wait else np.empty(num_bytes, np.uint8)

    def _count(self, change: int) -> None:
        with self._changed:
            self._num_at_work += change
            self._changed.notify_all()


class _Region:
    """Memory that devices read directly, and the ranges of it that are free."""

    def __init__(self, num_bytes: int, mesh: "DeviceMesh") -> None:
        self._clients = list({id(device.client): device.client for device in mesh.devices}.values())
        self._pinned_by: list = []
        self._is_settled = threading.Event()
        # Until the region is pinned, copies from it are right, and slower.
        self._memory = populated_memory(num_bytes // RANGE_BYTES * RANGE_BYTES, self._pin)
        self._free = [(0, len(self._memory))]  # begins and ends, in order

    def take(self, num_bytes: int) -> np.ndarray | None:
        """Return the first free range that is long enough, or None. Source: Knuth, TAOCP 1, 2.5, algorithm A."""
        length = _rounded(num_bytes)
        for index, (begin, end) in enumerate(self._free):
            if end - begin >= length:
                self._free[index : index + 1] = [(begin + length, end)] if end - begin > length else []
                return self._memory[begin : begin + num_bytes]
        return None

    def give_back(self, address: int, num_bytes: int) -> None:
        """Free the range at an address, unless it lies outside of the region."""
        begin = address - self._memory.ctypes.data
        if not 0 <= begin < len(self._memory):
            return
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*self._free, (begin, begin + _rounded(num_bytes))]):
            if merged and merged[-1][1] == first:
                merged[-1] = merged[-1][0], last
            else:
                merged.append((first, last))
        self._free = merged

    def unpin(self) -> None:
        """Wait until the region is pinned, and unpin it; no copy may be under way."""
        self._is_settled.wait()
        for client in self._pinned_by:
            client.dma_unmap(self._memory.ctypes.data)

    def _pin(self, memory: np.ndarray) -> None:
        try:
            for client in self._clients:
                client.dma_map(memory.ctypes.data, memory.nbytes)
                self._pinned_by.append(client)
        except (AttributeError, RuntimeError) as error:  # not every platform can, nor every container may
            logger.info("host memory is not pinned; weights are copied once more", extra={"reason": str(error)})
        finally:
            self._is_settled.set()


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // RANGE_BYTES) * RANGE_BYTES
