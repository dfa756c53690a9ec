"""The device side of an encoder: starts steps, and reads their vectors."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from service.compile.lazy import LazyExecutables
from service.compile.program import Executable
from service.encoder.batcher import EncoderPlan, PlannedText
from service.encoder.packing import pack
from service.encoder.request import EncodeRequest, HiddenStates, Vectors
from service.encoder.shapes import EncoderShapes, smallest
from service.encoder.steps.names import embed_name, layer_group_name, step_names, vectors_name
from service.models.encoders.packing import GroupInputs, VectorInputs
from service.models.interface import LayerGroup, Weights


class StartedStep(NamedTuple):
    """A step that the device runs."""

    vectors: jax.Array  # float32 of shape [text, vector], with a row for every place
    hidden: jax.Array | None  # of shape [token, hidden], if a text wants them
    first: np.ndarray  # token of each text


class EncoderRunner:
    """Runs plans on the device, in the order in which they are dispatched."""

    def __init__(
        self,
        shapes: EncoderShapes,
        layer_groups: Sequence[LayerGroup],
        weights: Weights,
        executables: Mapping[str, Executable],
    ) -> None:
        """Connect weights and executables.

        Args:
            shapes: the sizes that the executables were compiled for.
            layer_groups: the model's layers, as they were compiled.
            weights: the model's weights by name.
            executables: the compiled programs by name; they may still be loading.
        """
        self.shapes = shapes
        self._weights: list[jax.Array] = jax.tree.leaves(weights)
        self._groups = [(group, [weights[name] for name in group.weights]) for group in layer_groups]
        self._executables = executables
        self._usable: tuple[int, ...] = ()

    def usable_buckets(self) -> Sequence[int]:
        """Return the buckets whose executables need not be waited for; the largest is always one of them."""
        if len(self._usable) < len(self.shapes.buckets):
            *others, largest = self.shapes.buckets
            self._usable = (*filter(self._is_usable, others), largest)
        return self._usable

    def dispatch(self, plan: EncoderPlan) -> StartedStep:
        """Start a step and return at once."""
        self._prefer(plan)
        step, bucket = pack(plan), plan.bucket
        hidden = self._executables[embed_name(bucket)](self._weights, [], step.tokens)
        for group, weights in self._groups:
            executable = self._executables[layer_group_name(bucket, group)]
            inputs = GroupInputs(hidden, step.tokens.positions, step.texts.segments, step.window)
            hidden = executable(weights, [], inputs)
        vectors = self._executables[vectors_name(bucket)](self._weights, [], VectorInputs(hidden, step.texts))
        return StartedStep(vectors, hidden if plan.wants_tokens else None, np.asarray(step.texts.first))

    def run_all(self) -> None:
        """Run a step of every bucket, and wait for it."""
        for bucket in self.shapes.buckets:
            request = EncodeRequest("warm", ((0,) * min(bucket, self.shapes.max_model_len),))
            self.read(self.dispatch(EncoderPlan(bucket, [PlannedText(request, 0)])), 1)

    @staticmethod
    def read(step: StartedStep, num_texts: int) -> Vectors:
        """Wait for a step and return the vectors of its texts."""
        return np.asarray(step.vectors)[:num_texts]

    @staticmethod
    def read_tokens(step: StartedStep, plan: EncoderPlan) -> Mapping[int, HiddenStates]:
        """Wait for a step and return the hidden states, in float32, of each text that wants them, by its place."""
        if step.hidden is None:
            return {}
        hidden = np.asarray(step.hidden)
        return {
            place: hidden[first : first + len(text.token_ids)].astype(np.float32)
            for place, (text, first) in enumerate(zip(plan.texts, step.first, strict=False))
            if text.request.wants_tokens
        }

    def _prefer(self, plan: EncoderPlan) -> None:
        """Have the executables of the plan's best bucket compiled next, if it had to take another one."""
        best = smallest(self.shapes.buckets, plan.size)
        if best != plan.bucket and isinstance(self._executables, LazyExecutables):
            self._executables.prefer(self._names(best))

    def _is_usable(self, bucket: int) -> bool:
        executables = self._executables
        return not isinstance(executables, LazyExecutables) or all(map(executables.is_usable, self._names(bucket)))

    def _names(self, bucket: int) -> list[str]:
        return step_names(bucket, [group for group, _ in self._groups])
