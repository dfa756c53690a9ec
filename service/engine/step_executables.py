"""A runner's executables by bucket and size, as many as a start has loaded or compiled so far."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from service.compile.lazy import LazyExecutables
from service.compile.program import Executable
from service.engine.available_steps import AvailableSteps
from service.engine.shapes import Bucket, EngineShapes, StepKind
from service.engine.steps.names import (
    COUNT_TOKENS,
    SET_OPTIONS,
    SamplingPart,
    choice_parts,
    copy_name,
    copy_names,
    distinct,
    embed_name,
    layer_group_name,
    sampling_name,
    sampling_parts,
    step_names,
    whole_name,
)
from service.kernels.cache_layout import CopyKind
from service.models.interface import LayerGroup


class DeferredExecutable:
    """An executable that is looked up when it first runs; until then it may still be loading or compiling."""

    def __init__(self, find: Callable[[str], Executable], name: str) -> None:
        self._find = find
        self._name = name
        self._found: Executable | None = None

    def get(self) -> Executable:
        """Return the executable; the first call waits until it is there."""
        if self._found is None:
            self._found = self._find(self._name)
        return self._found


class ModelExecutables(NamedTuple):
    """The model's part of a step of one bucket."""

    embed: DeferredExecutable
    layer_groups: tuple[DeferredExecutable, ...]  # one for each layer group of the model


class StepExecutables:
    """The executables of steps by bucket and size, so that a step formats and looks up no names."""

    def __init__(
        self, executables: Mapping[str, Executable], shapes: EngineShapes, groups: Sequence[LayerGroup]
    ) -> None:
        self.waited_s = 0.0  # for executables that were still being compiled, by all steps so far
        self._by_name = executables
        self._shapes = shapes
        self._kinds = distinct(groups)
        self._preferred: set[tuple[StepKind, Bucket]] = set()
        self.available = AvailableSteps(shapes, self._is_compiled, self._are_copies_compiled, self._num_compiled)

        def deferred(name: str) -> DeferredExecutable:
            return DeferredExecutable(self._find, name)

        def by_group(name: Callable[[LayerGroup], str]) -> tuple[DeferredExecutable, ...]:
            return tuple(deferred(name(group)) for group in groups)

        self.model = {
            (kind, bucket): ModelExecutables(
                deferred(embed_name(kind, bucket.num_seqs, bucket.num_tokens)),
                by_group(lambda group, kind=kind, bucket=bucket: layer_group_name(kind, bucket, group)),
            )
            for kind, bucket in shapes.buckets
        }
        self.sampling = {
            (part, num_seqs): deferred(sampling_name(part, num_seqs))
            for part in sampling_parts(shapes)
            for num_seqs in shapes.all_seq_counts
        }
        self.choices = choice_parts(shapes)
        self._whole = {
            (part, bucket): deferred(whole_name(part, bucket))
            for bucket in (shapes.decode_grid if shapes.has_whole_steps else ())
            for part in self.choices
        }
        self.copies = {
            kind: by_group(lambda group, kind=kind: copy_name(kind, group))
            for kind in (CopyKind if shapes.has_slot_cache else ())
        }
        self.set_options = deferred(SET_OPTIONS)
        self.count_tokens = deferred(COUNT_TOKENS)

    def choice(self, wanted: SamplingPart, num_seqs: int) -> SamplingPart:
        """Return the program to choose tokens by: the one that suffices, or the general one until that is compiled."""
        is_there = (wanted, num_seqs) in self.sampling and self._is_usable(sampling_name(wanted, num_seqs))
        return wanted if is_there else SamplingPart.CHOOSE

    def whole(self, choice: SamplingPart, bucket: Bucket) -> DeferredExecutable | None:
        """Return the program that is all of a decode step; None if there is none, or until it is compiled."""
        executable = self._whole.get((choice, bucket))
        is_there = executable is not None and self._is_usable(whole_name(choice, bucket))
        return executable if is_there else None

    def prefer(self, kind: StepKind, bucket: Bucket) -> None:
        """Have the executables of a step compiled next."""
        if (kind, bucket) not in self._preferred and isinstance(self._by_name, LazyExecutables):
            self._preferred.add((kind, bucket))
            self._by_name.prefer(step_names(kind, bucket, self._kinds))

    def _find(self, name: str) -> Executable:
        """Look an executable up; it may have to be compiled first."""
        begin_s = time.perf_counter()
        is_usable = self._is_usable(name)
        executable = self._by_name[name]
        if not is_usable:
            self.waited_s += time.perf_counter() - begin_s
        return executable

    @property
    def are_in_the_making(self) -> bool:
        """Whether some are still being loaded or compiled."""
        return isinstance(self._by_name, LazyExecutables) and not self._by_name.is_done

    def _num_compiled(self) -> int:
        return self._by_name.num_built if isinstance(self._by_name, LazyExecutables) else len(self._by_name)

    def _is_usable(self, name: str) -> bool:
        return not isinstance(self._by_name, LazyExecutables) or self._by_name.is_usable(name)

    def _is_compiled(self, kind: StepKind, bucket: Bucket) -> bool:
        return all(map(self._is_usable, step_names(kind, bucket, self._kinds)))

    def _are_copies_compiled(self) -> bool:
        return all(map(self._is_usable, copy_names(self._shapes, self._kinds)))
