"""A decode step as one program, for devices that prefer that: the same functions as in parts, one after the other."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int

from service.engine.shapes import StepKind
from service.engine.steps.inputs import ChooseInputs
from service.engine.steps.keys import distinct
from service.engine.steps.sampling import SamplingState
from service.engine.steps.step import SlotState, choose_step, embed_tokens, logits_step, run_layer_group
from service.models.interface import Cache, PagedDecoder, Weights


class WholeState(NamedTuple):
    """All state on the device between steps."""

    slots: SlotState
    caches: tuple[Cache, ...]  # of each layer group


class WholeInputs(NamedTuple):
    """The host's part of a decode step."""

    packed: Int[Any, "seq column"]
    page_table: Int[Any, "seq page"]


class WholeSteps:
    """The decode steps of a model, whose layer groups of equal kind are traced once for each shape."""

    def __init__(self, model: PagedDecoder) -> None:
        self._model = model
        first_of_kind = {group.kind: group for group in distinct(model.layer_groups)}
        # XLA inlines the calls.
        self._run_kind = cache(lambda kind: jax.jit(partial(run_layer_group, model, first_of_kind[kind])))

    def run(
        self,
        choose: Callable[[Float[Array, "seq vocab"], SamplingState], Int[Array, " seq"]],
        weights: Weights,
        state: WholeState,
        inputs: WholeInputs,
    ) -> tuple[WholeState, Int[Array, " seq"]]:
        """Return the token that a function chooses for each sequence, and leave it in the sequence's slot."""
        slots, embedded = embed_tokens(self._model, StepKind.DECODE, weights, state.slots, inputs.packed)
        group_inputs = embedded.inputs._replace(paging=embedded.inputs.paging._replace(page_table=inputs.page_table))
        caches = []
        for group, group_cache in zip(self._model.layer_groups, state.caches, strict=True):
            of_group = [weights[name] for name in group.weights]
            changed, outputs = self._run_kind(group.kind)(of_group, group_cache, group_inputs)
            caches.append(changed)
            group_inputs = group_inputs._replace(hidden=outputs.hidden)
        slots, logits = logits_step(self._model, weights, slots, group_inputs.hidden)
        slots, token_ids = choose_step(choose, weights, slots, ChooseInputs(logits, embedded.targets))
        return WholeState(slots, tuple(caches)), token_ids
