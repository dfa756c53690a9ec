"""Attention of every token to every other: of an encoder over one window."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Scores that exist at the same time per head: 3 MB in float32, so that a block stays near the cache of a CPU.
MOST_PAIRS = 3 * 2**18


def attend_both_ways(
    query: Float[Array, "token head head_dim"],
    key: Float[Array, "token head head_dim"],
    value: Float[Array, "token head head_dim"],
    *,
    scale: float,
    count: Int[Array, ""] | None = None,
) -> Float[Array, "token head head_dim"]:
    """Attend from each token to all, or to the first `count`, a block of queries at a time.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.
    """
    num_tokens = len(query)
    block = next(size for size in range(max(1, MOST_PAIRS // num_tokens), 0, -1) if num_tokens % size == 0)
    # With heads before tokens, the products need no copies.
    queries, keys, values = (array.swapaxes(0, 1) for array in (query * scale, key, value))

    def attend(part: Float[Array, "head query head_dim"]) -> Float[Array, "head query head_dim"]:
        scores = jnp.einsum("hqd,hkd->hqk", part, keys, preferred_element_type=jnp.float32)
        if count is not None:
            scores = jnp.where((jnp.arange(num_tokens) < count)[None, None, :], scores, -jnp.inf)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1).astype(values.dtype), values)

    with jax.named_scope("attention"):
        parts = queries.reshape(queries.shape[0], -1, block, queries.shape[-1]).swapaxes(0, 1)
        return jax.lax.map(attend, parts).swapaxes(1, 2).reshape(query.shape)
