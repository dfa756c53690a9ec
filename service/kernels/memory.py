"""Attention to a memory: the keys and values of an encoder's output, which lie in pages of a layer's cache.

Every token of a sequence sees all of its memory, so tokens are rows of one product, as heads of a group are.
"""

import jax
import jax.numpy as jnp

from service.kernels.attention import QueryHeads
from service.kernels.paging import Paging
from service.kernels.reference import MASKED_SCORE, KVPages, wide_context


def attend_memory(query: QueryHeads, pages: KVPages, memory: Paging, *, scale: float) -> QueryHeads:
    """Attend from each token to all cached positions of its sequence's memory.

    Args:
        query: queries of the tokens.
        pages: the layer's cache.
        memory: the pages of each sequence's memory; `start` is its length.
        scale: factor of the product of a query and a key.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3 (encoder-decoder attention).
    """
    with jax.named_scope("memory_attention"):
        keys, values = wide_context(pages, memory.page_table, query.dtype)
        scores = jnp.einsum("stkgd,skcd->skgtc", query, keys, preferred_element_type=jnp.float32) * scale
        is_memory = jnp.arange(keys.shape[2], dtype=jnp.int32)[None, :] < memory.start[:, None]
        weights = jax.nn.softmax(jnp.where(is_memory[:, None, None, None], scores, MASKED_SCORE), axis=-1)
        return jnp.einsum("skgtc,skcd->stkgd", weights.astype(values.dtype), values)
