"""Products of tokens with adapters, of which each token has its own or none.

All adapters on the device multiply all tokens, and what is not of a token's own adapter is dropped: two products, no
gather and no branch, the same program for any mixture. Adapters are finite, so those of others add zeros. On a CPU, the
call in C++ reads only the adapters that tokens have; see `service/device/native/adapters.cc`.

Source: Hu et al. 2021, arXiv:2106.09685, section 4.1 (LoRA).
"""

import math
from itertools import accumulate
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from service.kernels.products.linear import Products
from service.kernels.products.native import native_adapters


class SlotWeights(NamedTuple):
    """The adapters of a weight, of every slot."""

    a: Float[Array, "slot part rank in"]  # of each tensor that the weight joins
    b: Float[Array, "slot rank *out"]  # with the adapter's scale
    parts: tuple[int, tuple[int, ...]]  # the axis of `*out` along which those tensors lie, and the size of each


def add_adapters(
    out: Float[Array, "token *out"],
    x: Float[Array, "token in"],
    adapters: SlotWeights,
    slots: Int32[Array, " token"],
    products: Products,
) -> Float[Array, "token *out"]:
    """Return `out`, with the products of each token with its adapter added; of a token without one, as it is.

    Args:
        out: the products of the tokens with a weight.
        x: the tokens.
        adapters: A and B of every slot, for this weight.
        slots: the slot of each token's adapter; -1 for none.
        products: how the device computes products.
    """
    a, b, (axis, sizes) = adapters
    if products.native.has_products and x.dtype == jnp.float32:
        inner = math.prod(out.shape[2 + axis :])
        ends = tuple(inner * end for end in accumulate(sizes))
        flat = a, b.reshape(*b.shape[:2], -1)
        return native_adapters(out.reshape(len(x), -1), x, flat, slots, ends).reshape(out.shape)
    is_own = slots[:, None] == jnp.arange(len(a), dtype=jnp.int32)[None]
    narrow = jnp.einsum("ti,spri->tpsr", x, a, preferred_element_type=jnp.float32)
    # Not multiplied by zero: the product of another adapter may be infinite.
    own = jnp.where(is_own[:, None, :, None], narrow, 0).astype(x.dtype)
    of_parts = jnp.split(b, list(accumulate(sizes))[:-1], axis=2 + axis)
    updates = [
        jnp.tensordot(own[:, part], of_part, ((1, 2), (0, 1)), preferred_element_type=jnp.float32)
        for part, of_part in enumerate(of_parts)
    ]
    update = jnp.concatenate(updates, axis=1 + axis)
    has_adapter = jnp.any(is_own, axis=1).reshape(-1, *(1,) * (out.ndim - 1))
    return jnp.where(has_adapter, (out + update).astype(out.dtype), out)
