"""The device side of an encoder: starts steps, and reads their vectors."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from service.compile.lazy import LazyExecutables
from service.compile.program import Executable
from service.encoder.batcher import Plan, PlannedText
from service.encoder.packing import pack
from service.encoder.request import EncodeRequest, Vectors
from service.encoder.shapes import EncoderShapes, smallest
from service.encoder.steps.names import embed_name, layer_group_name, step_names, vectors_name
from service.models.encoders.packing import GroupInputs, VectorInputs
from service.models.interface import LayerGroup, Weights


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
            weights: by name.
            executables: by name; they may still be loading.
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

    def dispatch(self, plan: Plan) -> jax.Array:
        """Start a step and return its vectors at once; float32 of shape [text, vector], with a row for every place."""
        self._prefer(plan)
        step, bucket = pack(plan), plan.bucket
        hidden = self._executables[embed_name(bucket)](self._weights, [], step.tokens)
        for group, weights in self._groups:
            executable = self._executables[layer_group_name(bucket, group)]
            inputs = GroupInputs(hidden, step.tokens.positions, step.texts.segments, step.window)
            hidden = executable(weights, [], inputs)
        return self._executables[vectors_name(bucket)](self._weights, [], VectorInputs(hidden, step.texts))

    def run_all(self) -> None:
        """Run a step of every bucket, and wait for it."""
        for bucket in self.shapes.buckets:
            request = EncodeRequest("warm", ((0,) * min(bucket, self.shapes.max_text_tokens),))
            self.read(self.dispatch(Plan(bucket, [PlannedText(request, 0)])), 1)

    @staticmethod
    def read(vectors: jax.Array, num_texts: int) -> Vectors:
        """Wait for a step and return the vectors of its texts."""
        return np.asarray(vectors)[:num_texts]

    def _prefer(self, plan: Plan) -> None:
        """Have the executables of the plan's best bucket compiled next, if it had to take another one."""
        best = smallest(self.shapes.buckets, plan.size)
        if best != plan.bucket and isinstance(self._executables, LazyExecutables):
            self._executables.prefer(self._names(best))

    def _is_usable(self, bucket: int) -> bool:
        executables = self._executables
        return not isinstance(executables, LazyExecutables) or all(map(executables.is_usable, self._names(bucket)))

    def _names(self, bucket: int) -> list[str]:
        return step_names(bucket, [group for group, _ in self._groups])
