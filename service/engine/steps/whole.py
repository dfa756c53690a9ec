"""A decode step as one program, for devices that prefer that: the same functions as in parts, one after the other."""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax

from service.engine.shapes import Bucket
from service.engine.steps.features import Features, taps_in
from service.engine.steps.inputs import EmbedInputs, SampleInputs
from service.engine.steps.keys import distinct
from service.engine.steps.sampling import Sampled
from service.engine.steps.step import SlotState, StepGroupInputs, embed_tokens, run_layer_group
from service.models.interface import Cache, PagedDecoder, Weights

type SampleStep = Callable[[Weights, SlotState, SampleInputs], tuple[SlotState, Sampled]]


class WholeState(NamedTuple):
    """All state on the device between steps."""

    slots: SlotState
    caches: tuple[Cache, ...]  # of each layer group
    features: Features | None = None  # None of an engine that keeps none


class WholeSteps:
    """The decode steps of a model, whose layer groups of equal kind are traced once for each shape."""

    def __init__(self, model: PagedDecoder, *, has_adapters: bool, taps: tuple[int, ...] | None = None) -> None:
        self._model, self._has_adapters, self._taps = model, has_adapters, taps
        first_of_kind = {group.kind: group for group in distinct(model.layer_groups)}
        # XLA inlines the calls.
        self._run_kind = cache(lambda kind: jax.jit(partial(run_layer_group, model, first_of_kind[kind])))

    def run(
        self,
        sample: SampleStep,
        bucket: Bucket,
        weights: Weights,
        state: WholeState,
        inputs: EmbedInputs,
    ) -> tuple[WholeState, Sampled]:
        """Return the token that a function samples for each slot, and leave it in the slot."""
        state, hidden = self.run_model(bucket, weights, state, inputs)
        slots, sampled = sample(weights, state.slots, hidden)
        return state._replace(slots=slots), sampled

    def run_model(
        self, bucket: Bucket, weights: Weights, state: WholeState, inputs: EmbedInputs
    ) -> tuple[WholeState, SampleInputs]:
        """Return the inputs of a sampling that follows."""
        slots, embedded = embed_tokens(
            self._model, bucket, weights, state.slots, inputs, has_adapters=self._has_adapters
        )
        layers, caches, features = embedded.inputs, [], state.features
        for number, (group, group_cache) in enumerate(zip(self._model.layer_groups, state.caches, strict=True)):
            of_group = [weights[name] for name in group.weights]
            if embedded.per_layer:
                layers = layers._replace(per_layer=embedded.per_layer[number])
            read = tuple(caches[cache.group][cache.layer] for cache in group.shared)
            taps = None if self._taps is None else taps_in(group.layers, self._taps)
            (changed, features), outputs = self._run_kind(group.kind)(
                of_group, (read or group_cache, features), StepGroupInputs(layers, None, taps)
            )
            caches.append(group_cache if read else changed)
            layers = layers._replace(hidden=outputs.hidden)
        return WholeState(slots, tuple(caches), features), SampleInputs(layers.hidden, embedded.sampled)
