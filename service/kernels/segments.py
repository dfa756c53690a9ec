"""Attention within segments: several texts packed into one row that do not see one another.

A row is divided into windows, and no segment crosses the edge of a window. Long windows are computed in blocks of
queries, so that the scores of all pairs of tokens never exist at the same time.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from service.kernels.windows import WHOLE_TEXT, Sight, windows

MOST_QUERIES = 512  # of a block
# Scores that exist at the same time per head: 67 MB in float32 for 16 heads.
MOST_PAIRS = 2**20
# The score of tokens that must not see each other; finite, so that the softmax of a fully masked row is finite.
MASKED = -1e30


def segment_attention(
    query: Float[Array, "token head head_dim"],
    key: Float[Array, "token kv_head head_dim"],
    value: Float[Array, "token kv_head head_dim"],
    segments: Int[Array, "token"],
    window: Int[Array, ""],
    *,
    scale: float,
    sight: Sight = WHOLE_TEXT,
    by_distance: Float[Array, "distance head"] | None = None,
) -> Float[Array, "token head head_dim"]:
    """Attend from each token to tokens of its own segment.

    Args:
        query: queries of every token; adjacent heads share a key-value head.
        key: keys of every token.
        value: values of every token.
        segments: the text that each token belongs to.
        window: index of the window size in `windows(token)`; no segment may cross the edge of a window.
        scale: factor of the product of a query and a key.
        sight: the visible tokens within a segment.
        by_distance: what is added to the score of a key, by how far it lies from the query: from `1 - token` to
            `token - 1`; None for nothing.
    """
    key, value = _with_nans_in_keys(key, value)
    choices = windows(len(segments))
    forms = [functools.partial(_in_windows, size=size, sight=sight, by_distance=by_distance) for size in choices]
    return jax.lax.switch(window, forms, query * scale, key, value, segments)


def _in_windows(
    query: Float[Array, "token head head_dim"],
    key: Float[Array, "token kv_head head_dim"],
    value: Float[Array, "token kv_head head_dim"],
    segments: Int[Array, "token"],
    *,
    size: int,
    sight: Sight,
    by_distance: Float[Array, "distance head"] | None,
) -> Float[Array, "token head head_dim"]:
    # With heads before tokens, the products need no copies and take half to two thirds of the time.
    queries, keys, values = (array.reshape(-1, size, *array.shape[1:]).swapaxes(1, 2) for array in (query, key, value))
    by_window = segments.reshape(-1, size)
    attend = functools.partial(_attend, sight=sight, by_distance=by_distance)
    if _block(size) == size:
        attended = attend(queries, keys, values, by_window, jnp.arange(size))
    else:
        cut = (queries, keys, values, by_window)
        attended = jax.lax.map(lambda part: _in_blocks(attend, part[0], part[1], part[2], part[3]), cut)
    return attended.swapaxes(1, 2).reshape(query.shape)


def _block(size: int) -> int:
    """Return how many queries of a window to compute at a time: a divisor of the window's size."""
    most = max(1, min(size, MOST_QUERIES, MOST_PAIRS // size))
    return next(block for block in range(most, 0, -1) if size % block == 0)


def _in_blocks(
    attend: Callable[..., jax.Array], query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array
) -> Float[Array, "head token head_dim"]:
    """Attend within one window, one block of queries at a time."""
    blocks = jnp.arange(query.shape[1]).reshape(-1, _block(query.shape[1]))
    others = (key[None], value[None], segments[None])
    attended = jax.lax.map(lambda places: attend(query[None, :, places], *others, places)[0], blocks)
    return jnp.moveaxis(attended, 0, 1).reshape(query.shape)


def _attend(
    query: Float[Array, "window head query head_dim"],
    key: Float[Array, "window kv_head token head_dim"],
    value: Float[Array, "window kv_head token head_dim"],
    segments: Int[Array, "window token"],
    places: Int[Array, "query"],
    *,
    sight: Sight,
    by_distance: Float[Array, "distance head"] | None,
) -> Float[Array, "window head query head_dim"]:
    """Attend from queries at these offsets in their windows to all tokens of the windows."""
    num_windows, num_kv_heads, num_tokens, head_dim = key.shape
    by_kv_head = query.reshape(num_windows, num_kv_heads, -1, head_dim)
    scores = jnp.einsum("whqd,whkd->whqk", by_kv_head, key, preferred_element_type=jnp.float32)
    scores = scores.reshape(num_windows, -1, len(places), num_tokens)
    if by_distance is not None:
        distances = jnp.arange(num_tokens)[None] - places[:, None] + len(by_distance) // 2
        scores += jnp.moveaxis(by_distance[distances], -1, 0)[None].astype(scores.dtype)
    scores = jnp.where(_is_seen(segments, places, sight)[:, None], scores, MASKED)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    shares = weights.astype(value.dtype).reshape(num_windows, num_kv_heads, -1, num_tokens)
    attended = jnp.einsum("whqk,whkd->whqd", shares, value).reshape(query.shape)
    return attended / weights.sum(-1, keepdims=True).astype(value.dtype)


def _is_seen(
    segments: Int[Array, "window token"], places: Int[Array, "query"], sight: Sight
) -> Bool[Array, "window query token"]:
    is_seen = segments[:, places, None] == segments[:, None, :]
    distance = (places[:, None] - jnp.arange(segments.shape[1])[None])[None]
    if sight.is_causal:
        is_seen &= distance >= 0
    if sight.reach is not None:
        is_seen &= jnp.abs(distance) <= sight.reach
    return is_seen


def _with_nans_in_keys(
    key: Float[Array, "token kv_head head_dim"], value: Float[Array, "token kv_head head_dim"]
) -> tuple[Float[Array, "token kv_head head_dim"], Float[Array, "token kv_head head_dim"]]:
    """Move NaNs from values to keys, where masking contains them: a weight of zero times NaN is NaN."""
    is_finite = jnp.isfinite(value)
    nan, zero = jnp.array(jnp.nan, key.dtype), jnp.array(0, value.dtype)
    return jnp.where(is_finite.all(-1, keepdims=True), key, nan), jnp.where(is_finite, value, zero)
