"""The state on the device between steps: the slots, and the layer groups' caches.

None of it needs weights, so a start makes it while weights are still loading.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from service.compile.program import Executable
from service.engine.shapes import EngineShapes
from service.engine.steps.names import INITIAL_SLOTS, initial_cache_name
from service.engine.steps.step import SlotState
from service.models.interface import LayerGroup, Weights


class LayerGroupOnDevice:
    """A layer group's weights and cache, in the order in which its executables take them."""

    def __init__(self, group: LayerGroup, cache: list[jax.Array], weights: Weights) -> None:
        self._cache = cache
        self._weights = [weights[name] for name in group.weights]

    def run(self, executable: Executable, inputs: Any) -> Any:
        """Start a program of the group, which updates the cache, and return its outputs at once."""
        return executable(self._weights, self._cache, inputs)


class DeviceState:
    """The state of one engine's device; a `Runner` updates it from step to step."""

    def __init__(
        self, shapes: EngineShapes, groups: Sequence[LayerGroup], executables: Mapping[str, Executable]
    ) -> None:
        """Make the slots and the caches; on a CPU they occupy no memory until steps write them."""
        slots: SlotState = executables[INITIAL_SLOTS]((), [], ())
        self.slots: list[jax.Array] = jax.tree.leaves(slots)
        self.replicated = slots.token_counts.sharding  # of arrays that every device has a copy of
        self.vocab_size: int = slots.token_counts.shape[1]
        made = [executables[initial_cache_name(group)]((), [], ()) for group in groups]
        self.caches: list[list[jax.Array]] = [jax.tree.leaves(cache) for cache in made]

    def run_whole(self, executable: Executable, weights: Sequence[jax.Array], inputs: Any) -> Any:
        """Start a program that takes all of the state, and return its outputs at once."""
        parts = [self.slots, *self.caches]
        state = list(itertools.chain.from_iterable(parts))
        outputs = executable(weights, state, inputs)
        changed = iter(state)
        for part in parts:
            part[:] = itertools.islice(changed, len(part))
        return outputs
