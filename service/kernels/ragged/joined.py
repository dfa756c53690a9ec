"""Neighboring heads side by side in a register, so that heads of 64 dimensions or fewer take no padding.

Keys and values of such heads form one joined head. A query is as wide and has zeros beside its own head, which leaves
its scores unchanged; of what it attends to, its own part is taken.

    keys of a joined head       k0 k0 k1 k1
    queries of head 0           q0 q0 0  0
    queries of head 1           0  0  q1 q1
"""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from service.kernels.attention import QueryHeads

JoinedQueries = Shaped[Array, "seq token joined_head joined_group joined_dim"]


def joined(
    heads: Shaped[Array, "seq token kv_head dim"], count: int
) -> Shaped[Array, "seq token joined_head joined_dim"]:
    """Pack `count` heads of keys or values side by side into one."""
    num_seqs, width, num_heads, dim = heads.shape
    return heads.reshape(num_seqs, width, num_heads // count, count * dim)


def joined_queries(query: QueryHeads, count: int) -> JoinedQueries:
    """Return the queries of joined heads: those of a token's first head, then of the next, as wide as all."""
    num_seqs, width, num_heads, group, dim = query.shape
    own = query.reshape(num_seqs, width, num_heads // count, count, group, dim)
    place = jnp.arange(count)[:, None, None]
    # Side by side, and not along an axis of their own, which XLA on a TPU would fill with padding.
    wide = jnp.concatenate([jnp.where(place == index, own, 0) for index in range(count)], axis=-1)
    return wide.reshape(num_seqs, width, num_heads // count, count * group, count * dim)


def own_parts(attended: JoinedQueries, count: int) -> QueryHeads:
    """Return each query's part of what the queries of `joined_queries` have attended to."""
    num_seqs, width, num_joined, rows, joined_dim = attended.shape
    dim = joined_dim // count
    by_head = attended.reshape(num_seqs, width, num_joined, count, rows // count, joined_dim)
    place = jnp.arange(count)[:, None, None]
    own = by_head[..., :dim]
    for index in range(1, count):
        own = jnp.where(place == index, by_head[..., index * dim : (index + 1) * dim], own)
    return own.reshape(num_seqs, width, num_joined * count, rows // count, dim)
