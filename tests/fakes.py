"""The hand-counted model with a cache per slot."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from benchmarks.hand_counted import HandCountedModel
from service.kernels.cache_layout import CacheLayout, CopyKind
from service.models.interface import LayerGroup


class TokenRows(NamedTuple):
    """A cache of token ids: a row per slot, the prefill row behind them, and pages."""

    rows: Int[Array, "row position"]
    pages: Int[Array, "page position"]


class HandCountedRows(HandCountedModel):
    """The same continuation, read back from a row: a page that is not copied rightly shows."""

    has_slot_cache = True

    def initial_cache(self, layout: CacheLayout, group: LayerGroup) -> TokenRows:
        return TokenRows(
            jnp.full((layout.num_slots + 1, layout.context_sizes[-1]), 41, jnp.int32),
            jnp.full((layout.num_pages, layout.page_size), 43, jnp.int32),
        )

    def run_layer_group(self, group, weights, cache, inputs):
        token_ids, paging = inputs.hidden[..., 0].astype(jnp.int32), inputs.paging
        width = token_ids.shape[1]
        positions = paging.positions(width)
        prefill_row = len(cache.rows) - 1
        is_in_prefill_row = width > 1 and len(paging.slots) == 1
        own = jnp.full_like(paging.slots, prefill_row) if is_in_prefill_row else paging.slots
        # A token of padding goes to no row.
        is_token = paging.is_token(width) & (paging.slots < prefill_row)[:, None]
        rows = cache.rows.at[jnp.where(is_token, own[:, None], len(cache.rows)), positions].set(token_ids, mode="drop")
        context = rows.at[own].get(mode="clip")
        is_seen = jnp.arange(context.shape[1])[None, None, :] <= positions[:, :, None]
        sums = jnp.sum(jnp.where(is_seen, context[:, None, :], 0), axis=-1)
        return sums[..., None].astype(jnp.float32), cache._replace(rows=rows)

    def copy_pages(self, kind, contexts, cache, pages):
        is_page = pages.ids < cache.pages.shape[0]
        positions = jnp.where(is_page[:, None], self._positions(cache, pages), cache.rows.shape[1])
        if kind is CopyKind.SAVE:
            saved = cache.rows.at[pages.slot, positions].get(mode="clip")
            return cache._replace(pages=cache.pages.at[pages.ids].set(saved, mode="drop"))
        if kind is CopyKind.RESTORE:
            source, target = cache.pages.at[pages.ids].get(mode="clip"), pages.slot
        elif kind is CopyKind.INSERT:
            source, target = cache.rows.at[-1, positions].get(mode="clip"), pages.slot
        else:
            source, target = cache.rows.at[pages.slot, positions].get(mode="clip"), len(cache.rows) - 1
        return cache._replace(rows=cache.rows.at[target, positions].set(source, mode="drop"))

    def _positions(self, cache, pages):
        page_size = cache.pages.shape[1]
        first = (pages.first + jnp.arange(len(pages.ids)))[:, None] * page_size
        return first + jnp.arange(page_size)[None, :]
