"""Arrays padded with zeros to the sizes that a kernel takes."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Shaped


def padded(x: Shaped[Array, "..."], sizes: Mapping[int, int]) -> Shaped[Array, "..."]:
    """Return an array with axes, by number, padded to these sizes."""
    return jnp.pad(x, [(0, sizes.get(axis, size) - size) for axis, size in enumerate(x.shape)])


def rounded_up(size: int, multiple: int) -> int:
    """Return the smallest multiple that is not below a size."""
    return -(-size // multiple) * multiple
