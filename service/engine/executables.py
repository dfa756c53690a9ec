"""A runner's executables, looked up by key, while a start may still be loading or compiling some of them."""

import time
from collections.abc import Mapping, Sequence

from service.compile.lazy import LazyExecutables
from service.compile.program import Executable
from service.engine.shapes import AvailableSteps, Bucket, EngineShapes, available_steps
from service.engine.steps.keys import ProgramKey, step_keys
from service.models.interface import LayerGroup


class Executables:
    """Looks each executable up once, so that a step formats no names."""

    def __init__(self, by_name: Mapping[str, Executable], shapes: EngineShapes, groups: Sequence[LayerGroup]) -> None:
        self.waited_s = 0.0  # for executables that were still being loaded or compiled, by all lookups so far
        self._by_name = by_name
        self._lazy = by_name if isinstance(by_name, LazyExecutables) else None
        self._shapes = shapes
        self._groups = groups
        self._by_key: dict[ProgramKey, Executable] = {}
        self._preferred: set[Bucket] = set()
        self._compiled: set[Bucket] = set()
        self._available: AvailableSteps | None = None
        self._num_built = 0  # when `_available` was computed

    def __getitem__(self, key: ProgramKey) -> Executable:
        """Return an executable; the first lookup of one waits until it is there."""
        executable = self._by_key.get(key)
        if executable is None:
            begin_s = time.perf_counter()
            is_usable = self.is_usable(key)
            executable = self._by_key[key] = self._by_name[str(key)]
            if not is_usable:
                self.waited_s += time.perf_counter() - begin_s
        return executable

    def is_usable(self, key: ProgramKey) -> bool:
        """Return whether a lookup need not wait."""
        return key in self._by_key or self._lazy is None or self._lazy.is_usable(str(key))

    def prefer(self, bucket: Bucket) -> None:
        """Have the executables of a step compiled next."""
        if self._lazy is not None and bucket not in self._preferred:
            self._preferred.add(bucket)
            self._lazy.prefer(list(map(str, step_keys(bucket, self._groups, self._shapes))))

    @property
    def is_loading(self) -> bool:
        """Whether any executable is still being loaded or compiled."""
        return self._lazy is not None and not self._lazy.is_done

    @property
    def available(self) -> AvailableSteps:
        """The steps whose executables need not be waited for."""
        num_built = 0 if self._lazy is None else self._lazy.num_built
        if self._available is None or (num_built != self._num_built and not self._available.is_complete):
            self._num_built = num_built
            missing = set(self._shapes.buckets) - self._compiled
            self._compiled |= {
                bucket for bucket in missing if all(map(self.is_usable, step_keys(bucket, self._groups, self._shapes)))
            }
            self._available = available_steps(self._shapes, self._compiled)
        return self._available
