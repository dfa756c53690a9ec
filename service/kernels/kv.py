"""Cached keys and values: in the dtype of activations, or in 8 bits with a scale per token and KV head.

Attention multiplies scores by the scales of keys, and weights by the scales of values, so neither is widened first.
Source: Hooper et al. 2024, arXiv:2401.18079, section 2 (quantization of the cache by token).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Float32, Num

from service.kernels.limits import LARGEST_CACHED


class KV(NamedTuple):
    """Keys and values, with scales if they are in 8 bits; the order of axes depends on the kernel."""

    keys: Num[Array, "..."]
    values: Num[Array, "..."]
    key_scales: Float32[Array, "..."] | None = None
    value_scales: Float32[Array, "..."] | None = None

    def map(self, function: Callable[..., Any], *others: tuple[Any, ...]) -> "KV":
        """Apply a function to each array and the corresponding elements of the others, like `jax.tree.map`."""
        results: list[Any] = []
        for mine, *rest in zip(self, *others, strict=True):
            results.append(None if mine is None else function(mine, *rest))
        return KV(*results)


def has_scales(dtype: DTypeLike) -> bool:
    """Return whether a cache of this dtype has scales."""
    return np.dtype(dtype).name in LARGEST_CACHED


def as_stored(
    keys: Float[Array, "*token kv_head head_dim"], values: Float[Array, "*token kv_head head_dim"], dtype: DTypeLike
) -> KV:
    """Convert tokens to a cache's dtype, with scales [*token, kv_head, 1] if it has 8 bits.

    The scale of a key with a NaN is NaN, so that every score with it is NaN too.
    """
    if not has_scales(dtype):
        return KV(keys, values)
    (stored_keys, key_scales), (stored_values, value_scales) = _quantized(keys, dtype), _quantized(values, dtype)
    return KV(stored_keys, stored_values, key_scales, value_scales)


def _quantized(
    vectors: Float[Array, "*token head_dim"], dtype: DTypeLike
) -> tuple[Num[Array, "*token head_dim"], Float32[Array, "*token 1"]]:
    wide, largest = vectors.astype(jnp.float32), LARGEST_CACHED[np.dtype(dtype).name]
    highest = jnp.max(jnp.abs(wide), axis=-1, keepdims=True)
    scale = jnp.where(highest == 0, 1, highest / largest)
    scaled = wide / scale
    return (jnp.round(scaled) if np.dtype(dtype) == np.int8 else scaled).astype(dtype), scale
