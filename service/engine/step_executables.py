"""A runner's executables by bucket and size, so that a step formats and looks up no names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from service.compile.program import Executable
from service.engine.shapes import CopyKind, EngineShapes, StepKind
from service.engine.steps.names import (
    COUNT_TOKENS,
    copy_name,
    embed_name,
    last_hidden_name,
    layer_group_name,
    prompt_logprobs_name,
    sample_name,
)
from service.models.interface import LayerGroup


class DeferredExecutable:
    """An executable that is looked up when it first runs; until then it may still be loading."""

    def __init__(self, executables: Mapping[str, Executable], name: str) -> None:
        self._executables = executables
        self._name = name
        self._found: Executable | None = None

    def get(self) -> Executable:
        """Return the executable; the first call waits until it is loaded."""
        if self._found is None:
            self._found = self._executables[self._name]
        return self._found


class ModelExecutables(NamedTuple):
    """The model's part of a step of one bucket."""

    embed: DeferredExecutable
    layer_groups: tuple[DeferredExecutable, ...]  # one for each layer group of the model
    last_hidden: DeferredExecutable | None  # None for a decode step, whose sequences have one token


class StepExecutables:
    """All executables of a runner except those that make its device state."""

    def __init__(
        self, executables: Mapping[str, Executable], shapes: EngineShapes, groups: Sequence[LayerGroup]
    ) -> None:
        def deferred(name: str) -> DeferredExecutable:
            return DeferredExecutable(executables, name)

        def by_group(name: Callable[[LayerGroup], str]) -> tuple[DeferredExecutable, ...]:
            return tuple(deferred(name(group)) for group in groups)

        prefill_shapes: list[Any] = shapes.token_shapes(StepKind.PREFILL)
        last_hidden = {shape: deferred(last_hidden_name(*shape)) for shape in prefill_shapes}
        self.model = {
            (kind, bucket): ModelExecutables(
                deferred(embed_name(kind, bucket)),
                by_group(lambda group, kind=kind, bucket=bucket: layer_group_name(kind, bucket, group)),
                last_hidden[bucket.num_seqs, bucket.num_tokens] if kind is StepKind.PREFILL else None,
            )
            for kind, bucket in shapes.buckets
        }
        self.sample = {
            (kind, num_seqs): deferred(sample_name(kind, num_seqs))
            for kind in StepKind
            for num_seqs in shapes.seq_counts(kind)
        }
        self.prompt_logprobs = {shape: deferred(prompt_logprobs_name(*shape)) for shape in prefill_shapes}
        self.copies = {
            (kind, size): by_group(lambda group, kind=kind, size=size: copy_name(kind, size, group))
            for kind in CopyKind
            for size in shapes.copy_sizes
            if shapes.has_slot_cache
        }
        self.count_tokens = deferred(COUNT_TOKENS)
