"""Zero-padding of arrays to sizes that a kernel supports."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Shaped


def padded(x: Shaped[Array, "..."], sizes: Mapping[int, int]) -> Shaped[Array, "..."]:
    """Pad axes of an array, given by number, to these sizes."""
    return jnp.pad(x, [(0, sizes.get(axis, size) - size) for axis, size in enumerate(x.shape)])


def rounded_up(size: int, multiple: int) -> int:
    """Round a size up to a multiple."""
    return -(-size // multiple) * multiple
