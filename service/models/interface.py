"""What a model must offer to be served, and what it is given.

A model is a pure description: it names its weights, shapes its cache, and traces its forward pass in parts: tokens to
hidden states (`embed`), some layers at a time (`run_stage`), hidden states to scores (`logits`). The engine calls them
with opaque pytrees and never looks inside.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from service.kernels.paging import CacheLayout, Paging, RowPages
from service.models.weight_spec import WeightSpec

Weights = Mapping[str, jax.Array]  # by WeightSpec.name
# A stage's: a pytree for each part. Parts are made in their order, the last of them when a step first reaches so far.
Cache = tuple[Any, ...]


class Stage(NamedTuple):
    """Neighbouring layers that one executable runs. Stages of one kind look alike and share their executables."""

    kind: str  # part of the executables' names
    layers: range
    weights: tuple[str, ...]  # by WeightSpec.name, in the order in which the kind's executables take them


class StageInputs(NamedTuple):
    """What a stage takes besides weights and cache."""

    hidden: Float[Array, "seq token hidden"]  # from the stage before
    rotation: Any  # as `embed` returned it
    paging: Paging


class Shardings(NamedTuple):
    """Where a model's arrays lie when several devices share each step."""

    cache: jax.sharding.Sharding  # every array of the cache
    whole: jax.sharding.Sharding  # what every device has a copy of


@runtime_checkable
class PagedDecoder(Protocol):
    """A causal language model whose cache lies in pages."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are; logits have this width."""
        ...

    @property
    def hidden_size(self) -> int:
        """The width of the hidden states."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Of the hidden states."""
        ...

    @property
    def context_len(self) -> int:
        """The longest sequence, in tokens, that the model was made for."""
        ...

    @property
    def shardings(self) -> Shardings | None:
        """Where arrays lie on several devices; None: all on one."""
        ...

    def weight_specs(self) -> tuple[WeightSpec, ...]:
        """Name every weight array; known from the configuration alone."""
        ...

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The layers in order, in those parts in which they are compiled."""
        ...

    def initial_cache(self, layout: CacheLayout, stage: Stage) -> Cache:
        """Return a stage's empty cache; traced for its shapes and compiled, never called for big arrays on the host."""
        ...

    def embed(
        self, weights: Weights, token_ids: Int[Array, "seq token"], positions: Int[Array, "seq token"]
    ) -> tuple[Float[Array, "seq token hidden"], Any]:
        """Return the hidden states before the first stage, and what every stage needs to know of the positions."""
        ...

    def run_stage(
        self, stage: Stage, weights: Sequence[jax.Array], cache: Cache, inputs: StageInputs
    ) -> tuple[Float[Array, "seq token hidden"], Cache]:
        """Run a stage's layers; its cache now holds the tokens."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """Whether pages must be copied to and from a slot's row (`save_pages`, `restore_pages`)."""
        ...

    def save_pages(self, cache: Cache, pages: RowPages) -> Cache:
        """Copy pages out of a slot's row of a stage."""
        ...

    def restore_pages(self, cache: Cache, pages: RowPages) -> Cache:
        """Copy pages into a slot's row of a stage."""
        ...

    def logits(self, weights: Weights, hidden: Float[Array, "sample hidden"]) -> Float[Array, "sample vocab"]:
        """Turn hidden states after the last stage into float32 scores over the vocabulary."""
        ...
