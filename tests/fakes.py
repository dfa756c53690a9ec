"""Models whose output can be computed by hand."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.kernels.cache_layout import CacheLayout
from service.models.interface import LayerGroup, LayerGroupInputs, Weights
from service.models.weight_spec import WeightSpec


class TokenPages(NamedTuple):
    """A cache that holds the token ids themselves."""

    token_ids: Int[Array, "page position"]


class HandCountedModel:
    """The next token is the sum of all tokens of the sequence, read back from its pages, modulo the vocabulary.

    [2, 3] is continued with 5, 10, 20, ... It reads the cache, never the input, so any mistake in paging, chunking or
    the reuse of slots changes what comes out.
    """

    context_len = 4096
    hidden_size = 1
    dtype = np.dtype(np.float32)
    shardings = None
    has_slot_cache = False  # of the layout that it needs
    layer_groups = (LayerGroup("all", range(1), ()),)

    def __init__(self, vocab_size: int = 97) -> None:
        self.vocab_size = vocab_size

    def expected(self, prompt_ids: tuple[int, ...], num_tokens: int) -> list[int]:
        """Compute the continuation with a pencil."""
        token_ids = list(prompt_ids)
        for _ in range(num_tokens):
            token_ids.append(sum(token_ids) % self.vocab_size)
        return token_ids[len(prompt_ids) :]

    def weight_specs(self) -> tuple[WeightSpec, ...]:
        return ()

    def embed(self, weights: Weights, token_ids, positions) -> tuple[Float[Array, "seq token hidden"], tuple[()]]:
        return token_ids[..., None].astype(jnp.float32), ()

    def initial_cache(self, layout: CacheLayout, group: LayerGroup) -> TokenPages:
        # Not zeros: a position that was never written must show.
        return TokenPages(jnp.full((layout.num_pages, layout.page_size), 41, jnp.int32))

    def run_layer_group(
        self, group: LayerGroup, weights: list[Array], cache: TokenPages, inputs: LayerGroupInputs
    ) -> tuple[Float[Array, "seq token hidden"], TokenPages]:
        token_ids, paging = inputs.hidden[..., 0].astype(jnp.int32), inputs.paging
        width = token_ids.shape[1]
        num_pages, page_size = cache.token_ids.shape
        page_ids, offsets = paging.destinations(width, num_pages=num_pages, page_size=page_size)
        pages = cache.token_ids.at[page_ids, offsets].set(token_ids, mode="drop")
        context = pages[paging.page_table].reshape(token_ids.shape[0], -1)
        positions = paging.positions(width)
        is_seen = jnp.arange(context.shape[1])[None, None, :] <= positions[:, :, None]
        sums = jnp.sum(jnp.where(is_seen, context[:, None, :], 0), axis=-1)
        return sums[..., None].astype(jnp.float32), TokenPages(pages)

    def save_pages(self, cache, pages):
        return cache

    def restore_pages(self, cache, pages):
        return cache

    def logits(self, weights: Weights, hidden: Float[Array, "sample hidden"]) -> Float[Array, "sample vocab"]:
        return jax.nn.one_hot(hidden[:, 0].astype(jnp.int32) % self.vocab_size, self.vocab_size) * 10


class TokenRows(NamedTuple):
    """A cache that holds the token ids in a row per slot, and pages beside the rows."""

    rows: Int[Array, "slot position"]
    pages: Int[Array, "page position"]


class HandCountedRows(HandCountedModel):
    """The same continuation, read back from a slot's row: a page that is not saved or restored rightly shows."""

    has_slot_cache = True

    def initial_cache(self, layout: CacheLayout, group: LayerGroup) -> TokenRows:
        return TokenRows(
            jnp.full((layout.num_slots, layout.context_sizes[-1]), 41, jnp.int32),
            jnp.full((layout.num_pages, layout.page_size), 43, jnp.int32),
        )

    def run_layer_group(self, group, weights, cache, inputs):
        token_ids, paging = inputs.hidden[..., 0].astype(jnp.int32), inputs.paging
        width = token_ids.shape[1]
        positions = paging.positions(width)
        # A token of padding goes to no slot.
        slots = jnp.where(paging.is_token(width), paging.slots[:, None], cache.rows.shape[0])
        rows = cache.rows.at[slots, positions].set(token_ids, mode="drop")
        context = rows.at[paging.slots].get(mode="clip")
        is_seen = jnp.arange(context.shape[1])[None, None, :] <= positions[:, :, None]
        sums = jnp.sum(jnp.where(is_seen, context[:, None, :], 0), axis=-1)
        return sums[..., None].astype(jnp.float32), cache._replace(rows=rows)

    def save_pages(self, cache, pages):
        saved = cache.rows.at[pages.slot, self._positions(cache, pages)].get(mode="clip")
        return cache._replace(pages=cache.pages.at[pages.ids].set(saved, mode="drop"))

    def restore_pages(self, cache, pages):
        is_page = pages.ids < cache.pages.shape[0]
        positions = jnp.where(is_page[:, None], self._positions(cache, pages), cache.rows.shape[1])
        found = cache.pages.at[pages.ids].get(mode="clip")
        return cache._replace(rows=cache.rows.at[pages.slot, positions].set(found, mode="drop"))

    def _positions(self, cache, pages):
        page_size = cache.pages.shape[1]
        first = (pages.first + jnp.arange(len(pages.ids)))[:, None] * page_size
        return first + jnp.arange(page_size)[None, :]
