"""Bidirectional attention within segments: several texts in one row, none of which sees another.

Long rows are computed in blocks of queries, so that the scores of all pairs of tokens never exist at once.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

BLOCK = 512  # queries


def segment_attention(
    query: Float[Array, "token head head_dim"],
    key: Float[Array, "token head head_dim"],
    value: Float[Array, "token head head_dim"],
    segments: Int[Array, "token"],
    *,
    scale: float,
) -> Float[Array, "token head head_dim"]:
    """Attend from each token to all tokens of its own segment.

    Args:
        query: of every token.
        key: of every token.
        value: of every token.
        segments: which text each token belongs to.
        scale: factor of the product of a query and a key.
    """
    key, value = _with_nans_in_keys(key, value)
    num_tokens = len(segments)
    if num_tokens <= BLOCK or num_tokens % BLOCK:
        return _attend(query, segments, key, value, segments, scale=scale)
    blocks = (query.reshape(num_tokens // BLOCK, BLOCK, *query.shape[1:]), segments.reshape(-1, BLOCK))
    attended = jax.lax.map(lambda block: _attend(block[0], block[1], key, value, segments, scale=scale), blocks)
    return attended.reshape(query.shape)


def _attend(
    query: Float[Array, "query head head_dim"],
    query_segments: Int[Array, "query"],
    key: Float[Array, "token head head_dim"],
    value: Float[Array, "token head head_dim"],
    segments: Int[Array, "token"],
    *,
    scale: float,
) -> Float[Array, "query head head_dim"]:
    is_same = query_segments[:, None] == segments[None, :]
    scores = jnp.einsum("qhd,khd->hqk", query, key, preferred_element_type=jnp.float32) * scale
    scores = jnp.where(is_same[None], scores, -jnp.inf)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return jnp.einsum("hqk,khd->qhd", weights.astype(value.dtype), value)


def _with_nans_in_keys(
    key: Float[Array, "token head head_dim"], value: Float[Array, "token head head_dim"]
) -> tuple[Float[Array, "token head head_dim"], Float[Array, "token head head_dim"]]:
    """Move NaNs from values to keys, where the mask removes them for other segments: zero times NaN is NaN."""
    is_finite = jnp.isfinite(value)
    nan, zero = jnp.array(jnp.nan, key.dtype), jnp.array(0, value.dtype)
    return jnp.where(is_finite.all(-1, keepdims=True), key, nan), jnp.where(is_finite, value, zero)
