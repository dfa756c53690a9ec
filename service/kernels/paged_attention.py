"""Attention over pages: the one signature that models call.

Which kernel answers is decided here, once, by the platform; a model never asks.
"""

from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from service.kernels import reference
from service.kernels.paging import Paging


class KVPages(NamedTuple):
    """The keys and values of one layer, page by page."""

    keys: Float[Array, "page kv_head position head_dim"]
    values: Float[Array, "page kv_head position head_dim"]


def paged_attention(
    query: Float[Array, "seq token kv_head group head_dim"],
    new_keys: Float[Array, "seq token kv_head head_dim"],
    new_values: Float[Array, "seq token kv_head head_dim"],
    pages: KVPages,
    paging: Paging,
    *,
    scale: float,  # multiplies the scores, as a rule head_dim ** -0.5
    sliding_window: int | None = None,  # positions seen, the token's own included; None sees all
    soft_cap: float | None = None,  # scores are squeezed into (-soft_cap, soft_cap)
) -> tuple[Float[Array, "seq token kv_head group head_dim"], KVPages]:
    """Write the new tokens' keys and values into their pages and attend from each token to its context."""
    with jax.named_scope("cache_update"):
        pages = KVPages(
            keys=reference.write_pages(pages.keys, new_keys, paging),
            values=reference.write_pages(pages.values, new_values, paging),
        )
    with jax.named_scope("attention"):
        attended = reference.attend(
            query,
            reference.read_pages(pages.keys, paging),
            reference.read_pages(pages.values, paging),
            paging,
            scale=scale,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
        )
    return attended, pages
