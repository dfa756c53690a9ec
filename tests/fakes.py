"""The hand-counted model with a cache per slot."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from benchmarks.hand_counted import HandCountedModel
from service.kernels.cache_layout import CacheLayout
from service.models.interface import LayerGroup


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
