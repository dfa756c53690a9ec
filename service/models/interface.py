"""The interface between the engine and a model.

A model is a pure description: it names its weights, shapes its cache, and traces its forward pass in parts: tokens to
hidden states (`embed`), some layers at a time (`run_layer_group`), hidden states to logits (`logits`). The engine calls
them with pytrees that are opaque to it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging, Regions
from service.models.description import Attention
from service.models.weight_spec import WeightSpec

Weights = Mapping[str, jax.Array]  # by WeightSpec.name
Cache = Any  # a layer group's: a pytree


class SharedCache(NamedTuple):
    """The cache of one layer of an earlier group, which layers of a group read."""

    window: int  # of the layers; 0 for none
    group: int  # the number of the earlier group
    layer: int  # the number of the layer in it


class LayerGroup(NamedTuple):
    """Consecutive layers that one executable runs. Groups of one kind have equal traces and share their executables."""

    kind: str  # part of the executables' names
    layers: range
    weights: tuple[str, ...]  # by WeightSpec.name, in the order in which the kind's executables take them
    adapters: tuple[str, ...] = ()  # those of the weights that hold the slots of adapters
    shared: tuple[SharedCache, ...] = ()  # its cache: what its layers read, and leave as it is; () for one of its own


class LayerGroupInputs(NamedTuple):
    """The inputs of a layer group besides weights and cache."""

    hidden: Float[Array, "token hidden"]  # from the previous layer group
    rotation: Any  # as `embed` returned it
    regions: Regions
    memory: Regions | None = None  # the pages of each sequence's encoder output; None for a model without an encoder
    added: Float[Array, "layer token hidden"] | None = None  # to the hidden states after each of the first layers
    adapters: Int[Any, " token"] | None = None  # the slot of each token's adapter, -1 for none; None without slots
    windows: dict[int, Regions] | None = None  # of layers with a window whose pages are apart; None without any
    per_layer: Float[Array, "layer token size"] | None = None  # the input of each layer of the group; None without any
    embedded: Float[Array, "token hidden"] | None = None  # what layers read beside the hidden states; None if none does

    def regions_of(self, attention: Attention) -> Regions:
        """Return the positions and pages of the tokens, for layers with a sliding window or without one."""
        found = self.regions
        if self.windows is not None and attention.window is not None:
            found = self.windows.get(attention.window, found)
        return found if attention.looks_ahead else found.causal()


class Shardings(NamedTuple):
    """The shardings of a model's arrays when several devices share each step."""

    caches: tuple[Any, ...]  # of each layer group, as prefixes of the pytrees of their caches
    replicated: jax.sharding.Sharding  # of arrays that every device has a copy of


@runtime_checkable
class MediaEncoder(Protocol):
    """What turns the features of a medium into rows that a decoder attends to or takes for tokens, traced in parts."""

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, cut into groups that are compiled separately."""
        ...

    @property
    def features(self) -> Any:
        """The shapes of what a medium is encoded from, a pytree."""
        ...

    def begin(self, weights: Weights, features: Any) -> Any:
        """Return the hidden states before the first layer."""
        ...

    def run_layer_group(self, group: LayerGroup, weights: Sequence[jax.Array], hidden: Any) -> Any:
        """Run a group's layers."""
        ...

    def end(self, weights: Weights, hidden: Any) -> Float[Array, "row *level output"]:
        """Return the output; of rows that take the places of tokens also what the decoder's first layers add."""
        ...


@runtime_checkable
class TakesMedia(Protocol):
    """A decoder whose layers may attend to the output of an encoder, or that takes it for tokens."""

    @property
    def memory_len(self) -> int:
        """The positions of a sequence's memory."""
        ...

    def encoder_of(self, num_rows: int) -> MediaEncoder | None:
        """Return the encoder of media with a maximum number of rows; None of a model without one."""
        ...

    def attend_layer_group(
        self,
        group: LayerGroup,
        weights: Sequence[jax.Array],
        cache: Cache,
        inputs: LayerGroupInputs,
        heads: Int[Array, "layer head"],
    ) -> tuple[Float[Array, "token hidden"], Cache, Float[Array, "layer head prompt_token position"]]:
        """Run a group's layers, and return the scores by which heads of each layer attend to the memory, too."""
        ...

    def remember(
        self,
        group: LayerGroup,
        weights: Sequence[jax.Array],
        cache: Cache,
        output: Float[Array, "position hidden"],
        memory: Paging,
    ) -> Cache:
        """Write the keys and values of an encoder's output into pages, in every layer of a group."""
        ...


@runtime_checkable
class ShowsHidden(Protocol):
    """A decoder that returns the hidden states before some of its layers, too."""

    def show_layer_group(
        self,
        group: LayerGroup,
        weights: Sequence[jax.Array],
        cache: Cache,
        inputs: LayerGroupInputs,
        shown: Int[Array, " tap"],
    ) -> tuple[Float[Array, "token hidden"], Cache, Float[Array, "tap token hidden"]]:
        """Run a group's layers, and return the hidden states before some, by their numbers in the group, too."""
        ...


@runtime_checkable
class HasLayerInputs(Protocol):
    """A decoder whose layers may have inputs of their own besides the hidden states."""

    def per_layer_inputs(
        self,
        weights: Weights,
        token_ids: Int[Array, " token"],
        hidden: Float[Array, "token hidden"],
        is_media: Bool[Array, " token"] | None = None,
    ) -> tuple[Float[Array, "layer token size"], ...]:
        """Return the inputs of the layers of each group; of a model without them, nothing.

        Args:
            weights: the model's, by name.
            token_ids: the tokens.
            hidden: their embeddings, or rows of media in their places.
            is_media: whether a token's place is taken; None if none is.
        """
        ...


@runtime_checkable
class PagedDecoder(Protocol):
    """A causal language model whose cache lies in pages."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids, which is the width of logits."""
        ...

    @property
    def hidden_size(self) -> int:
        """The width of the hidden states."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the hidden states."""
        ...

    @property
    def context_len(self) -> int:
        """The longest sequence, in tokens, that the model was made for."""
        ...

    @property
    def memory_len(self) -> int:
        """The positions of a sequence's memory; 0 of a model without an encoder."""
        ...

    @property
    def shardings(self) -> Shardings | None:
        """The shardings of arrays on several devices; None on one device."""
        ...

    def weight_specs(self) -> tuple[WeightSpec, ...]:
        """Name every weight array; known from only the configuration."""
        ...

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, cut into groups that are compiled separately."""
        ...

    def initial_cache(self, layout: CacheLayout, group: LayerGroup) -> Cache:
        """Return a layer group's empty cache; only traced, so its arrays are never made on the host."""
        ...

    def embed(
        self, weights: Weights, token_ids: Int[Array, " token"], positions: Int[Array, "*axis token"]
    ) -> tuple[Float[Array, "token hidden"], Any]:
        """Return the hidden states before the first layer group, and a pytree of the positions for every group."""
        ...

    def run_layer_group(
        self, group: LayerGroup, weights: Sequence[jax.Array], cache: Cache, inputs: LayerGroupInputs
    ) -> tuple[Float[Array, "token hidden"], Cache]:
        """Run a group's layers; the returned cache holds the tokens."""
        ...

    def logits(
        self,
        weights: Weights,
        hidden: Float[Array, "sample hidden"],
        num_used: Int[Array, ""],
        *,
        stays_split: bool = False,
    ) -> Float[Array, "sample vocab"]:
        """Return float32 logits of hidden states after the last layer group; of the first `num_used`, at least.

        If they stay split, each device keeps those of its part of the vocabulary.
        """
        ...
