"""The hand-counted model with a cache per slot."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from benchmarks.hand_counted import HandCountedModel
from service.kernels.cache_layout import CacheLayout, CopyKind
from service.models.interface import LayerGroup


class TokenRows(NamedTuple):
    """A cache of token ids: the prefill row, a row per slot, and pages."""

    prefill_row: Int[Array, "1 position"]
    rows: Int[Array, "slot position"]
    pages: Int[Array, "page position"]


class HandCountedRows(HandCountedModel):
    """The same continuation, read back from a row: a page that is not copied rightly shows."""

    has_slot_cache = True

    def initial_cache(self, layout: CacheLayout, group: LayerGroup) -> TokenRows:
        return TokenRows(
            jnp.full((1, layout.context_sizes[-1]), 37, jnp.int32),
            jnp.full((layout.num_slots, layout.context_sizes[-1]), 41, jnp.int32),
            jnp.full((layout.num_pages, layout.page_size), 43, jnp.int32),
        )

    def run_layer_group(self, group, weights, cache, inputs):
        token_ids, paging = inputs.hidden[..., 0].astype(jnp.int32), inputs.paging
        width = token_ids.shape[1]
        positions = paging.positions(width)
        is_in_prefill_row = width > 1 and len(paging.slots) == 1
        own = jnp.zeros_like(paging.slots) if is_in_prefill_row else paging.slots
        before = cache.prefill_row if is_in_prefill_row else cache.rows
        # A token of padding goes to no row.
        is_token = paging.is_token(width) & (paging.slots < len(cache.rows))[:, None]
        rows = before.at[jnp.where(is_token, own[:, None], len(before)), positions].set(token_ids, mode="drop")
        context = rows.at[own].get(mode="clip")
        is_seen = jnp.arange(context.shape[1])[None, None, :] <= positions[:, :, None]
        sums = jnp.sum(jnp.where(is_seen, context[:, None, :], 0), axis=-1)
        written = cache._replace(prefill_row=rows) if is_in_prefill_row else cache._replace(rows=rows)
        return sums[..., None].astype(jnp.float32), written

    def copy_pages(self, kind, cache, pages):
        is_page = pages.ids < cache.pages.shape[0]
        positions = jnp.where(is_page[:, None], self._positions(cache, pages), cache.rows.shape[1])
        if kind.leaves_slot:
            in_slot = cache.rows.at[pages.slot, positions].get(mode="clip")
            if kind is CopyKind.SAVE:
                return cache._replace(pages=cache.pages.at[pages.ids].set(in_slot, mode="drop"))
            return cache._replace(prefill_row=cache.prefill_row.at[0, positions].set(in_slot, mode="drop"))
        if kind is CopyKind.RESTORE:
            source = cache.pages.at[pages.ids].get(mode="clip")
        else:
            source = cache.prefill_row.at[0, positions].get(mode="clip")
        return cache._replace(rows=cache.rows.at[pages.slot, positions].set(source, mode="drop"))

    def _positions(self, cache, pages):
        page_size = cache.pages.shape[1]
        first = (pages.first + jnp.arange(len(pages.ids)))[:, None] * page_size
        return first + jnp.arange(page_size)[None, :]
