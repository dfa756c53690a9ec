"""The compiled functions of a draft model: what it has not seen of some sequences, and the tokens it would go on with.

A draft model has no slots and no pages of its own: the keys and values of a position lie in the twin of the page in
which the target keeps its own. So whoever holds a page holds its twin, and prefixes that are found bring theirs along.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from service.compile.program import Program
from service.engine.shapes import Bucket, EngineShapes
from service.engine.steps.inputs import EmbedInputs, StepInputs, empty_step
from service.engine.steps.keys import DraftPart, OfDraft, draft_keys
from service.engine.steps.sharding import placed, placement_of
from service.engine.steps.step import SlotState
from service.engine.steps.whole import WholeState, WholeSteps
from service.models.interface import Cache, PagedDecoder, Weights


class DraftInputs(NamedTuple):
    """The host's part of the drafting of some sequences' next tokens; one without any has none to draft."""

    starts: Int[Any, " seq"]  # position of the last known token
    latest_ids: Int[Any, "2 seq"]  # the last token but one, and the last
    is_behind: Int[Any, " seq"]  # 1 if the last token but one is not computed yet, else 0
    counts: Int[Any, " seq"]  # of tokens to draft
    page_table: Int[Any, "seq page"]


def draft_shapes(shapes: EngineShapes) -> EngineShapes:
    """Return the sizes of a draft model's steps beside a target of some sizes: it takes plain text."""
    return replace(shapes, memory=None, media=None, adapters=None, windows=(), states=None)


def empty_rows(num_rows: int, shapes: EngineShapes) -> StepInputs:
    """Return rows without tokens."""
    return empty_step(Bucket(0, num_rows), draft_shapes(shapes))


def empty_drafts(num_seqs: int, shapes: EngineShapes) -> DraftInputs:
    """Return no sequence's drafts."""
    none = [np.zeros(num_seqs, np.int32) for _ in range(3)]
    starts, is_behind, counts = none
    pages = np.zeros((num_seqs, shapes.max_pages), np.int32)
    return DraftInputs(starts, np.zeros((2, num_seqs), np.int32), is_behind, counts, pages)


def draft_programs(
    model: PagedDecoder, shapes: EngineShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> list[Program]:
    """Return all programs of a draft model.

    Args:
        model: the draft model.
        shapes: the sizes of the target's engine.
        weight_shapes: the draft model's weights, by name.
    """
    steps, place, layout = DraftSteps(model, shapes.num_drafts), placement_of(model), draft_shapes(shapes).layout

    def make_caches() -> tuple[Cache, ...]:
        return tuple(model.initial_cache(layout, group) for group in model.layer_groups)

    caches = placed(jax.eval_shape(make_caches), place.caches)

    def program(key: OfDraft) -> Program:
        inputs: EmbedInputs | DraftInputs
        match key.part:
            case DraftPart.CACHE:
                return Program(str(key), lambda _, none, __: (none, make_caches()), outputs_sharding=place.caches)
            case DraftPart.READ:
                run: Any = partial(steps.read, Bucket(0, key.size))
                inputs = empty_rows(key.size, shapes).to_embed()
            case DraftPart.DRAFT:
                run, inputs = steps.draft, empty_drafts(key.size, shapes)
        shaped = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), inputs)
        return Program(str(key), run, weight_shapes, caches, shaped, place.replicated, place.replicated)

    return [program(key) for key in draft_keys(shapes)]


class DraftSteps:
    """The steps of a draft model."""

    def __init__(self, model: PagedDecoder, num_drafts: int) -> None:
        """Trace nothing yet.

        Args:
            model: the draft model.
            num_drafts: the most tokens that are drafted for a sequence.
        """
        self._model, self._num_drafts = model, num_drafts
        self._steps = WholeSteps(model, has_adapters=False)

    def read(
        self, bucket: Bucket, weights: Weights, caches: tuple[Cache, ...], inputs: EmbedInputs
    ) -> tuple[tuple[Cache, ...], Int[Array, ""]]:
        """Compute rows of tokens; return a number to wait for."""
        state = WholeState(_slots(jnp.zeros(0, jnp.int32)), caches)
        state, _ = self._steps.run_model(bucket, weights, state, inputs)
        return state.caches, jnp.int32(0)

    def draft(
        self, weights: Weights, caches: tuple[Cache, ...], inputs: DraftInputs
    ) -> tuple[tuple[Cache, ...], Int[Array, "seq draft"]]:
        """Return the likeliest next tokens of each sequence, each after the one before it."""
        host: DraftInputs = jax.tree.map(jnp.asarray, inputs)
        num_seqs = len(host.starts)
        bucket = Bucket(num_seqs, 0)

        def choose(hidden: Any, is_token: Array) -> Int[Array, " seq"]:
            num_used = jnp.max(jnp.where(is_token, jnp.arange(1, num_seqs + 1), 0))
            return jnp.argmax(self._model.logits(weights, hidden, num_used), axis=-1).astype(jnp.int32)

        def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            place, token_ids, drafted, before = carry
            is_token = jnp.where(place < 0, host.is_behind > 0, place < host.counts)
            token_ids = jnp.where(place <= 0, host.latest_ids[jnp.clip(place + 1, 0, 1)], token_ids)
            starts, none = jnp.maximum(host.starts + place, 0), jnp.zeros(num_seqs, jnp.int32)
            packed = jnp.concatenate([starts, is_token.astype(jnp.int32), none, none])
            state = WholeState(_slots(token_ids), before)
            state, outputs = self._steps.run_model(bucket, weights, state, EmbedInputs(packed, host.page_table))
            # The token after the last but one is known.
            token_ids = jax.lax.cond(place < 0, lambda: none, lambda: choose(outputs.hidden, is_token))
            drafted = drafted.at[:, jnp.maximum(place, 0)].set(token_ids)
            return place + 1, token_ids, drafted, state.caches

        first = jnp.where(jnp.any(host.is_behind > 0), -1, 0)
        none = jnp.zeros((num_seqs, self._num_drafts), jnp.int32)
        begin = (first, host.latest_ids[1], none, caches)
        last = jnp.max(host.counts)
        *_, drafted, caches = jax.lax.while_loop(lambda carry: carry[0] < last, advance, begin)
        return caches, drafted


def _slots(last_token_ids: Int[Array, " slot"]) -> SlotState:
    """Return slots that hold nothing but tokens."""
    none: Any = None
    return SlotState(last_token_ids, none, none)
