"""What a model must offer to be served, and what it is given.

A model is a pure description: it names its weights, shapes its cache, and traces one forward pass. The engine calls it
with opaque pytrees and never looks inside.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from service.kernels.paging import CacheLayout, Paging

Weights = Mapping[str, jax.Array]  # by WeightSpec.name
Cache = Any  # a pytree of arrays; its leaves are the model's affair


class StepBatch(NamedTuple):
    """The tokens of one step, padded to a bucket."""

    token_ids: Int[Array, "seq token"]
    paging: Paging


@dataclass(frozen=True)
class TensorSource:
    """One tensor of a checkpoint, under Hugging Face's names, and how it is turned before use."""

    name: str
    shape: tuple[int, ...]  # as it is stored
    view: tuple[int, ...]  # as it is served, before concatenation
    is_transposed: bool = False  # stored [out, in], served [in, out]
    copies: int = 1  # each index of the axis before the joined one comes so many times in `view`, side by side


@dataclass(frozen=True)
class WeightSpec:
    """One array on the device: its shape, the names of its axes, and the tensors that it is made of."""

    name: str
    axes: tuple[str, ...]  # Haliax axis names; sharding follows them
    shape: tuple[int, ...]
    sources: tuple[TensorSource, ...]
    concat_axis: int = 0  # where the sources are joined, if there are several


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
        """The width of the hidden states that `decode` returns and `logits` takes."""
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

    def initial_cache(self, layout: CacheLayout) -> Cache:
        """Return an empty cache; traced for its shapes and compiled, never called for big arrays on the host."""
        ...

    def decode(
        self, weights: Weights, cache: Cache, batch: StepBatch
    ) -> tuple[Float[Array, "seq token hidden"], Cache]:
        """Run the tokens of one step and return their last hidden states; the cache now holds them."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """Whether pages must be copied to and from a slot's row (`save_pages`, `restore_pages`)."""
        ...

    def save_pages(
        self, cache: Cache, slot: Int[Array, ""], first_page: Int[Array, ""], pages: Int[Array, " page"]
    ) -> Cache:
        """Copy neighbouring pages out of a slot's row; an id of `num_pages` is no page."""
        ...

    def restore_pages(
        self, cache: Cache, slot: Int[Array, ""], first_page: Int[Array, ""], pages: Int[Array, " page"]
    ) -> Cache:
        """Copy pages into a slot's row; an id of `num_pages` is no page."""
        ...

    def logits(self, weights: Weights, hidden: Float[Array, "sample hidden"]) -> Float[Array, "sample vocab"]:
        """Turn hidden states into float32 scores over the vocabulary."""
        ...
