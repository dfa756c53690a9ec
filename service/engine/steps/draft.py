"""The compiled functions of what drafts: what it has not read of some sequences, and the tokens it would go on with.

It has no slots and no pages of its own: the keys and values of a position lie in the twin of the page in which the
target keeps its own. So whoever holds a page holds its twin, and prefixes that are found bring theirs along.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, override, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from service.compile.program import Program
from service.engine.shapes import Bucket, EngineShapes
from service.engine.steps.features import Features
from service.engine.steps.inputs import EmbedInputs, StepInputs, empty_step
from service.engine.steps.keys import DraftPart, OfDraft, draft_keys, most_drafting
from service.engine.steps.sharding import Placement, placed, placement_of
from service.engine.steps.step import SlotState
from service.engine.steps.whole import WholeState, WholeSteps
from service.models.interface import Cache, PagedDecoder, Weights


class Lag(NamedTuple):
    """Where what drafts is, compared to a sequence whose last token is known and not computed."""

    shift: int  # the token of an input is the one so many positions after it
    most_behind: int  # positions before the last one, that are read while tokens are drafted


OF_MODEL = Lag(shift=0, most_behind=1)


class ReadInputs(NamedTuple):
    """Rows of tokens that are known."""

    step: EmbedInputs
    features: Float[Any, "tap page offset hidden"] | None = None  # that a head reads


class DraftInputs(NamedTuple):
    """The host's part of the drafting of some sequences' next tokens; one without any has none to draft."""

    starts: Int[Any, " seq"]  # the last position that can be read
    latest_ids: Int[Any, "latest seq"]  # the tokens of the positions up to that one
    num_behind: Int[Any, " seq"]  # of the positions before that one, those that are not read yet
    counts: Int[Any, " seq"]  # of tokens to draft
    page_table: Int[Any, "seq page"]
    features: Float[Any, "tap page offset hidden"] | None = None  # that a head reads


class Tokens(NamedTuple):
    """The tokens of a step, each with what a head reads of its position."""

    of_slots: Int[Array, " slot"]
    inputs: EmbedInputs  # positions and pages, and the tokens of rows
    features: Features | None = None
    before: Float[Array, "token hidden"] | None = None  # the result at the position before; None: only features count
    has_features: Bool[Array, ""] | bool = True  # whether those count, and not the result before


@runtime_checkable
class Drafting(Protocol):
    """What drafts: a small model, or a head."""

    @property
    def lag(self) -> Lag:
        """Where it is."""
        ...

    @property
    def hidden_size(self) -> int:
        """The width of its results."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its results."""
        ...

    @property
    def place(self) -> Placement:
        """The placement of its arrays."""
        ...

    def make_caches(self, shapes: EngineShapes) -> tuple[Cache, ...]:
        """Return its empty caches beside a target of some sizes."""
        ...

    def go_on(
        self, bucket: Bucket, weights: Weights, caches: tuple[Cache, ...], tokens: Tokens
    ) -> tuple[tuple[Cache, ...], Float[Array, "token hidden"]]:
        """Compute tokens; return the caches and a result for each."""
        ...

    def likeliest(
        self, weights: Weights, hidden: Float[Array, "token hidden"], num_used: Int[Array, ""]
    ) -> Int[Array, " token"]:
        """Return the likeliest token after each of the first results."""
        ...


class ModelDrafting(Drafting):
    """A small model of the same tokens, which takes plain text."""

    def __init__(self, model: PagedDecoder) -> None:
        """Trace nothing yet."""
        self._model = model
        self._steps = WholeSteps(model, has_adapters=False)

    @property
    @override
    def lag(self) -> Lag:
        return OF_MODEL

    @property
    @override
    def hidden_size(self) -> int:
        return self._model.hidden_size

    @property
    @override
    def dtype(self) -> np.dtype:
        return self._model.dtype

    @property
    @override
    def place(self) -> Placement:
        return placement_of(self._model)

    @override
    def make_caches(self, shapes: EngineShapes) -> tuple[Cache, ...]:
        layout = draft_shapes(shapes).layout
        return tuple(self._model.initial_cache(layout, group) for group in self._model.layer_groups)

    @override
    def go_on(
        self, bucket: Bucket, weights: Weights, caches: tuple[Cache, ...], tokens: Tokens
    ) -> tuple[tuple[Cache, ...], Float[Array, "token hidden"]]:
        none: Any = None
        state = WholeState(SlotState(tokens.of_slots, none, none), caches)
        state, outputs = self._steps.run_model(bucket, weights, state, tokens.inputs)
        return state.caches, jnp.asarray(outputs.hidden)

    @override
    def likeliest(
        self, weights: Weights, hidden: Float[Array, "token hidden"], num_used: Int[Array, ""]
    ) -> Int[Array, " token"]:
        return jnp.argmax(self._model.logits(weights, hidden, num_used), axis=-1).astype(jnp.int32)


def draft_shapes(shapes: EngineShapes) -> EngineShapes:
    """Return the sizes of the steps of what drafts beside a target of some sizes."""
    return replace(shapes, memory=None, media=None, adapters=None, windows=(), states=None)


def empty_rows(shapes: EngineShapes) -> StepInputs:
    """Return rows without tokens."""
    return empty_step(Bucket(0, shapes.row_counts[-1]), draft_shapes(shapes))


def empty_drafts(shapes: EngineShapes, lag: Lag) -> DraftInputs:
    """Return no sequence's drafts."""
    num_seqs = most_drafting(shapes)
    starts, num_behind, counts = (np.zeros(num_seqs, np.int32) for _ in range(3))
    latest_ids = np.zeros((lag.most_behind + 1, num_seqs), np.int32)
    return DraftInputs(starts, latest_ids, num_behind, counts, np.zeros((num_seqs, shapes.max_pages), np.int32))


def draft_programs(
    drafting: Drafting,
    shapes: EngineShapes,
    weight_shapes: Mapping[str, jax.ShapeDtypeStruct],
    features: jax.ShapeDtypeStruct | None = None,
) -> list[Program]:
    """Return all programs of what drafts.

    Args:
        drafting: the small model, or the head.
        shapes: the sizes of the target's engine.
        weight_shapes: the weights, by name.
        features: the shape of what a head reads of its target.
    """
    steps, place = DraftSteps(drafting, shapes), drafting.place
    caches = placed(jax.eval_shape(partial(drafting.make_caches, shapes)), place.caches)

    def program(key: OfDraft) -> Program:
        inputs: ReadInputs | DraftInputs
        if key.part is DraftPart.READ:
            run: Any = steps.read
            inputs = ReadInputs(empty_rows(shapes).to_embed(), features)
        else:
            run, inputs = steps.draft, empty_drafts(shapes, drafting.lag)._replace(features=features)
        shaped = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), inputs)
        return Program(str(key), run, weight_shapes, caches, shaped, place.replicated, place.replicated)

    return [program(key) for key in draft_keys()]


class DraftSteps:
    """The steps of what drafts."""

    def __init__(self, drafting: Drafting, shapes: EngineShapes) -> None:
        """Trace nothing yet.

        Args:
            drafting: the small model, or the head.
            shapes: the sizes of the target's engine.
        """
        self._drafting, self._num_drafts = drafting, shapes.num_drafts
        self._rows = Bucket(0, shapes.row_counts[-1])

    def read(
        self, weights: Weights, caches: tuple[Cache, ...], inputs: ReadInputs
    ) -> tuple[tuple[Cache, ...], Int[Array, ""]]:
        """Compute rows of tokens; return a number to wait for."""
        tokens = Tokens(jnp.zeros(0, jnp.int32), *jax.tree.map(jnp.asarray, inputs))
        caches, _ = self._drafting.go_on(self._rows, weights, caches, tokens)
        return caches, jnp.int32(0)

    def draft(
        self, weights: Weights, caches: tuple[Cache, ...], inputs: DraftInputs
    ) -> tuple[tuple[Cache, ...], Int[Array, "seq draft"]]:
        """Return the likeliest next tokens of each sequence, each after the one before it."""
        host: DraftInputs = jax.tree.map(jnp.asarray, inputs)
        drafting, num_seqs, last_known = self._drafting, len(host.starts), len(host.latest_ids) - 1
        bucket = Bucket(num_seqs, 0)
        none = jnp.zeros(num_seqs, jnp.int32)

        def choose(hidden: Array, is_token: Array) -> Int[Array, " seq"]:
            num_used = jnp.max(jnp.where(is_token, jnp.arange(1, num_seqs + 1), 0))
            return drafting.likeliest(weights, hidden, num_used)

        def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            place, token_ids, hidden, drafted, before = carry
            is_token = jnp.where(place < 0, -place <= host.num_behind, place < host.counts)
            known = host.latest_ids[jnp.clip(place + last_known, 0, last_known)]
            token_ids = jnp.where(place <= 0, known, token_ids)
            packed = jnp.concatenate([jnp.maximum(host.starts + place, 0), is_token.astype(jnp.int32), none, none])
            tokens = Tokens(token_ids, EmbedInputs(packed, host.page_table), host.features, hidden, place <= 0)
            after, hidden = drafting.go_on(bucket, weights, before, tokens)
            # The tokens after those before the last one are known.
            token_ids = jax.lax.cond(place < 0, lambda: none, lambda: choose(hidden, is_token))
            drafted = drafted.at[:, jnp.maximum(place, 0)].set(token_ids)
            return place + 1, token_ids, hidden, drafted, after

        hidden = jnp.zeros((num_seqs, drafting.hidden_size), drafting.dtype)
        drafted = jnp.zeros((num_seqs, self._num_drafts), jnp.int32)
        begin = (-jnp.max(host.num_behind), none, hidden, drafted, caches)
        last = jnp.max(host.counts)
        *_, drafted, caches = jax.lax.while_loop(lambda carry: carry[0] < last, advance, begin)
        return caches, drafted
