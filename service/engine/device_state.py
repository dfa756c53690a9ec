"""What stays on the device between steps: what each slot knows, and the stages' caches, which grow part by part.

None of it needs weights, so a start makes the first of it while they are still coming.
"""

import threading
from collections.abc import Mapping, Sequence

import jax

from service.compile.program import Executable
from service.engine.steps.programs import INITIAL_SLOTS, initial_cache_name
from service.engine.steps.step import SlotState
from service.models.interface import Stage


class StageCache:
    """The keys and values of a stage's layers, in the order in which its executables take them.

    What no step has reached is made while nobody waits for it, or else when a step does.
    """

    def __init__(self, stage: Stage, executables: Mapping[str, Executable]) -> None:
        self.leaves: list[jax.Array] = []
        self._stage = stage
        self._executables = executables
        self._next_part = 0
        self._lock = threading.Lock()  # who fills the cache may be another than who runs steps

    @property
    def is_filled(self) -> bool:
        """Whether all of the cache is there."""
        return initial_cache_name(self._stage, self._next_part) not in self._executables

    def grow(self, num_leaves: int) -> None:
        """Make what is not there yet of the first leaves."""
        while (size_seen := len(self.leaves)) < num_leaves:
            self._add_part(size_seen)

    def fill(self) -> None:
        """Make what is not there yet."""
        while True:
            size_seen = len(self.leaves)
            if self.is_filled:
                return
            self._add_part(size_seen)

    def _add_part(self, size_seen: int) -> None:
        with self._lock:
            if len(self.leaves) > size_seen:  # another thread came first
                return
            part = self._executables[initial_cache_name(self._stage, self._next_part)]((), [], ())
            # Not one behind the other: a step that comes meanwhile shall not wait for all.
            leaves = jax.block_until_ready(jax.tree.leaves(part))
            self._next_part += 1
            self.leaves.extend(leaves)


class DeviceState:
    """The state of one engine's device; a `Runner` moves it on from step to step."""

    def __init__(self, stages: Sequence[Stage], executables: Mapping[str, Executable]) -> None:
        """Make what the slots know, and nothing of the caches yet."""
        slots: SlotState = executables[INITIAL_SLOTS]((), [], ())
        self.slots: list[jax.Array] = jax.tree.leaves(slots)
        self.everywhere = slots.token_counts.sharding  # what lies whole on every device
        self.vocab_size: int = slots.token_counts.shape[1]
        self.caches = [StageCache(stage, executables) for stage in stages]

    @property
    def is_filled(self) -> bool:
        """Whether all caches are there."""
        return all(cache.is_filled for cache in self.caches)

    def begin_caches(self) -> None:
        """Make the first part of every cache, which the first step needs."""
        for cache in self.caches:
            cache.grow(1)

    def fill_caches(self) -> None:
        """Make what no step has reached yet of the caches; may run beside steps, on another thread."""
        for cache in self.caches:
            cache.fill()
