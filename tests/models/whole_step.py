"""A step of a model as tests want it: from token ids to logits of every position, each layer compiled by itself.

Equal code is compiled once in a process, however many layers, models and tests have it: compiling takes most of the
time of these tests, and models that differ in rope or in tying alone have the same layers.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import ZERO_STATE, Paging, Regions, StateSlots
from service.models.decoder import Decoder
from service.models.interface import LayerGroup, LayerGroupInputs, SharedCache

_compiled: dict[tuple[str, str], jax.stages.Compiled] = {}  # by the shapes of its arguments and its text


class WholeStep:
    """The parts of a model, one after the other; a part is compiled when a step first has its shapes."""

    def __init__(self, model: Decoder) -> None:
        self._model = model
        names = [spec.name for spec in model.weight_specs()]
        attentions = [layer.attention for layer in model.config.layers]
        sharing = {attention.window for attention in attentions if attention and attention.shares_cache}
        shared = tuple(SharedCache(window or 0, model.config.producer_of(window), 0) for window in sharing)
        self._layers = [
            LayerGroup(
                f"layer {model.config.layers.index(model.config.layers[layer])}",
                range(layer, layer + 1),
                tuple(name for name in names if name.startswith(f"layers.{layer}.")),
                shared=shared if attentions[layer] and attentions[layer].shares_cache else (),
            )
            for layer in range(model.config.num_layers)
        ]
        self._executables: dict[Any, jax.stages.Compiled] = {}

    def empty_caches(self, layout: CacheLayout) -> list[Any]:
        """Return the empty cache of every layer."""
        return [self._model.initial_cache(layout, layer) for layer in self._layers]

    def __call__(
        self,
        weights: dict[str, jax.Array],
        caches: list[Any],
        token_ids: Int[Array, "seq token"],
        paging: Paging,
        adapters: Int[Array, " token"] | None = None,
        seen: Float[Array, "seq token hidden"] | None = None,
    ) -> tuple[Float[Array, "seq token vocab"], list[Any]]:
        """Run all layers over some tokens.

        Args:
            weights: the model's weights by name.
            caches: of each layer.
            token_ids: the tokens.
            paging: their positions and pages.
            adapters: the slot of each token's adapter; None for none.
            seen: what takes the places of embeddings, and NaN where nothing does; None for text alone.
        """
        shape = token_ids.shape
        if any(layer.state is not None for layer in self._model.config.layers):
            own = jnp.arange(len(paging.start), dtype=jnp.int32)  # of each sequence a slot
            paging = paging._replace(states=StateSlots(jnp.where(paging.start > 0, own, ZERO_STATE), own))
        (hidden, rotation), per_layer = self._run("embed", self._embed, weights, token_ids, paging, seen)
        of_layers = jnp.concatenate(per_layer) if per_layer else None
        new_caches = []
        for number, (layer, cache) in enumerate(zip(self._layers, caches, strict=True)):
            of_layer = [weights[name] for name in layer.weights]
            run_layer = functools.partial(self._model.run_layer_group, layer)
            inputs = LayerGroupInputs(hidden, rotation, Regions.of_prompts(paging), adapters=adapters)
            if of_layers is not None:
                inputs = inputs._replace(per_layer=of_layers[number : number + 1])
            read = tuple(new_caches[other.group][other.layer] for other in layer.shared)
            hidden, new_cache = self._run(layer.kind, run_layer, of_layer, read or cache, inputs)
            new_caches.append(cache if read else new_cache)
        logits = self._run("logits", self._logits, weights, hidden)
        return logits.reshape(*shape, -1), new_caches

    def _embed(
        self,
        weights: dict[str, jax.Array],
        token_ids: Int[Array, "seq token"],
        paging: Paging,
        seen: Float[Array, "seq token hidden"] | None,
    ) -> tuple[tuple[Float[Array, "token hidden"], Any], Any]:
        positions = paging.positions(token_ids.shape[1]).reshape(-1)
        hidden, rotation = self._model.embed(weights, token_ids.reshape(-1), positions)
        is_media = None
        if seen is not None:
            rows = seen.reshape(hidden.shape)
            is_media = ~jnp.isnan(rows[:, 0])
            hidden = jnp.where(is_media[:, None], rows, hidden)
        per_layer = self._model.per_layer_inputs(weights, token_ids.reshape(-1), hidden, is_media)
        return (hidden, rotation), per_layer

    def _logits(
        self, weights: dict[str, jax.Array], hidden: Float[Array, "token hidden"]
    ) -> Float[Array, "token vocab"]:
        return self._model.logits(weights, hidden)

    def _run(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        key = (name, *(leaf.shape for leaf in jax.tree.leaves(arguments)))
        if key not in self._executables:
            lowered = jax.jit(function).lower(*arguments)
            signature = (str(lowered.in_avals), lowered.as_text())
            if signature not in _compiled:
                _compiled[signature] = lowered.compile()
            self._executables[key] = _compiled[signature]
        return self._executables[key](*arguments)
