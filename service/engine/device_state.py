"""The state on the device between steps: the slots, and the layer groups' caches, which grow part by part.

None of it needs weights, so a start makes its first part while weights are still loading.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from service.compile.program import Executable
from service.engine.shapes import EngineShapes
from service.engine.steps.names import INITIAL_SLOTS, initial_cache_name
from service.engine.steps.step import SlotState
from service.models.interface import LayerGroup, Weights


class LayerGroupCache:
    """The keys and values of a group's layers, in the order in which its executables take them.

    A part is made when a step first reaches it, or before that by `fill`.
    """

    def __init__(self, group: LayerGroup, num_parts: int, executables: Mapping[str, Executable]) -> None:
        self.leaves: list[jax.Array] = []
        self._group = group
        self._num_parts = num_parts
        self._executables = executables
        self._num_made = 0
        self._lock = threading.Lock()  # one thread may fill the cache while another runs steps

    @property
    def is_filled(self) -> bool:
        """Whether all parts are made."""
        return self._num_made == self._num_parts

    def grow(self, num_leaves: int) -> None:
        """Make parts until there are so many leaves."""
        while (size_seen := len(self.leaves)) < num_leaves:
            self._add_part(size_seen)

    def fill(self, pause: Callable[[float], None] = lambda seconds: None) -> None:
        """Make all missing parts; `pause` is called after each with the seconds that it took."""
        while True:
            size_seen = len(self.leaves)
            if self.is_filled:
                return
            begin_s = time.perf_counter()
            self._add_part(size_seen)
            pause(time.perf_counter() - begin_s)

    def _add_part(self, size_seen: int) -> None:
        with self._lock:
            if len(self.leaves) > size_seen:  # another thread came first
                return
            part = self._executables[initial_cache_name(self._group, self._num_made)]((), [], ())
            # One part at a time: a step that is dispatched in between would wait for all that is queued before it.
            leaves = jax.block_until_ready(jax.tree.leaves(part))
            self._num_made += 1
            self.leaves.extend(leaves)


class LayerGroupOnDevice:
    """A layer group's weights and cache, in the order in which its executables take them."""

    def __init__(self, group: LayerGroup, cache: LayerGroupCache, weights: Weights) -> None:
        self._cache = cache
        self._weights = [weights[name] for name in group.weights]

    def run(self, executable: Executable, inputs: Any) -> Any:
        """Start a program of the group, which updates the cache, and return its outputs at once."""
        self._cache.grow(executable.reach)
        return executable(self._weights, self._cache.leaves, inputs)


class DeviceState:
    """The state of one engine's device; a `Runner` updates it from step to step."""

    def __init__(
        self, shapes: EngineShapes, groups: Sequence[LayerGroup], executables: Mapping[str, Executable]
    ) -> None:
        """Make the slots, and no part of the caches yet."""
        slots: SlotState = executables[INITIAL_SLOTS]((), [], ())
        self.slots: list[jax.Array] = jax.tree.leaves(slots)
        self.replicated = slots.token_counts.sharding  # of arrays that every device has a copy of
        self.vocab_size: int = slots.token_counts.shape[1]
        num_parts = shapes.layout.num_parts
        self.caches = [LayerGroupCache(group, num_parts, executables) for group in groups]

    def run_whole(self, executable: Executable, weights: Sequence[jax.Array], inputs: Any) -> Any:
        """Start a program that takes all of the state, and return its outputs at once."""
        self.fill_caches()
        parts = [self.slots, *(cache.leaves for cache in self.caches)]
        state = list(itertools.chain.from_iterable(parts))
        outputs = executable(weights, state, inputs)
        changed = iter(state)
        for part in parts:
            part[:] = itertools.islice(changed, len(part))
        return outputs

    @property
    def is_filled(self) -> bool:
        """Whether all caches are complete."""
        return all(cache.is_filled for cache in self.caches)

    def begin_caches(self) -> None:
        """Make the first part of every cache, which the first step needs."""
        for cache in self.caches:
            cache.grow(1)

    def fill_caches(self, pause: Callable[[float], None] = lambda seconds: None) -> None:
        """Make all missing parts of the caches; may run on another thread while steps run. See `LayerGroupCache`."""
        for cache in self.caches:
            cache.fill(pause)
