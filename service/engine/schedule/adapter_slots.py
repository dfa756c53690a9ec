"""The slots of adapters on the device: which adapter each holds, and how many sequences use it.

A slot keeps its adapter until another one needs the slot, the one that was used least recently first. Device steps run
in order, so a slot may be written while an earlier step that reads it is still in flight.
"""

from dataclasses import dataclass

from service.engine.request import Adapter


@dataclass(frozen=True, slots=True)
class AdapterWrite:
    """An adapter to be written into a slot before a step."""

    slot: int
    adapter: Adapter


class AdapterSlots:
    """Hands out slots to the sequences that run."""

    def __init__(self, num_slots: int) -> None:
        """Begin with empty slots."""
        self._slot_of: dict[bytes, int] = {}  # by the digest of the adapter, least recently used first
        self._num_users = [0] * num_slots
        self._free = list(range(num_slots))[::-1]
        self._writes: dict[int, Adapter] = {}  # by slot, those that no plan has taken yet

    @property
    def num_users(self) -> list[int]:
        """How many running sequences use each slot."""
        return self._num_users

    def can_hold(self, adapter: Adapter | None) -> bool:
        """Return whether a sequence with this adapter may run now."""
        return adapter is None or adapter.digest in self._slot_of or 0 in self._num_users

    def hold(self, adapter: Adapter) -> int:
        """Return the slot of an adapter for one more sequence; it is written if it is not there."""
        slot = self._slot_of.pop(adapter.digest, None)
        if slot is None:
            slot = self._free.pop() if self._free else self._evict()
            self._writes[slot] = adapter
        self._slot_of[adapter.digest] = slot
        self._num_users[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """Give up one use of a slot."""
        self._num_users[slot] -= 1

    def take_writes(self) -> tuple[AdapterWrite, ...]:
        """Return what is to be written before the next step, once."""
        writes = tuple(AdapterWrite(slot, adapter) for slot, adapter in self._writes.items())
        self._writes.clear()
        return writes

    def _evict(self) -> int:
        digest = next(digest for digest, slot in self._slot_of.items() if self._num_users[slot] == 0)
        return self._slot_of.pop(digest)
