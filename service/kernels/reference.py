"""Attention over pages, slow and obviously right: the oracle of every other kernel."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from service.kernels.paging import Paging

# Finite, so that a padded row, where every position is masked, stays free of NaN.
MASKED_SCORE = -1e30


def write_pages(
    pages: Float[Array, "page kv_head position head_dim"],
    new: Float[Array, "seq token kv_head head_dim"],
    paging: Paging,
) -> Float[Array, "page kv_head position head_dim"]:
    """Put each new token's vectors into its page; padding is dropped."""
    num_pages, _, page_size, _ = pages.shape
    page_ids, offsets = paging.destinations(new.shape[1], num_pages=num_pages, page_size=page_size)
    return pages.at[page_ids, :, offsets].set(new.astype(pages.dtype), mode="drop")


def read_pages(
    pages: Float[Array, "page kv_head position head_dim"], paging: Paging
) -> Float[Array, "seq kv_head context head_dim"]:
    """Gather each row's pages into one context, padded to the width of the page table."""
    gathered = pages[paging.page_table]  # [seq, page, kv_head, position, head_dim]
    by_head = jnp.moveaxis(gathered, 2, 1)
    return by_head.reshape(*by_head.shape[:2], -1, pages.shape[-1])


def attend(
    query: Float[Array, "seq token kv_head group head_dim"],
    keys: Float[Array, "seq kv_head context head_dim"],
    values: Float[Array, "seq kv_head context head_dim"],
    paging: Paging,
    *,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
) -> Float[Array, "seq token kv_head group head_dim"]:
    """Attend causally from each token to the positions up to its own.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1; grouped heads: Ainslie et al. 2023, arXiv:2305.13245;
    sliding window: Jiang et al. 2023, arXiv:2310.06825; soft cap: Gemma Team 2024, arXiv:2408.00118.
    """
    scores = jnp.einsum("stkgd,skcd->skgtc", query, keys, preferred_element_type=jnp.float32) * scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    query_positions = paging.positions(query.shape[1])[:, :, None]
    key_positions = jnp.arange(keys.shape[2], dtype=jnp.int32)[None, None, :]
    is_visible = key_positions <= query_positions
    if sliding_window is not None:
        is_visible &= key_positions > query_positions - sliding_window
    scores = jnp.where(is_visible[:, None, None], scores, MASKED_SCORE)
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return jnp.einsum("skgtc,skcd->stkgd", weights.astype(values.dtype), values)
