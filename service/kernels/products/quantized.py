"""Products with weights in 8 bits, by activations quantized in the step or by unquantized ones, or in 4 bits.

Source: Dettmers et al. 2022, arXiv:2208.07339, section 2.1 (absmax quantization, by token and by row).
"""

from enum import StrEnum
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Float32, Num

from service.device.chips import cuda_capability
from service.device.mesh import DeviceMesh
from service.kernels.limits import ADA, FP8_MAX, INT8_MAX

FP8, FP4 = jnp.float8_e4m3fn, jnp.float4_e2m1fn


class QuantizedWeight(NamedTuple):
    """An 8-bit weight with a scale per row."""

    values: Num[Array, "*out_in"]  # int8 or float8_e4m3fn
    scale: Float32[Array, "*out"]


class GroupedWeight(NamedTuple):
    """A 4-bit weight whose rows have a scale, and a zero point or none, for each group of columns."""

    values: Num[Array, "*out_in"]  # int4 or float4_e2m1fn, whose numbers are exact in every type of activations
    scale: Float[Array, "*out_group"]
    zero: Float[Array, "*out_group"] | None

    def widened(self, dtype: DTypeLike) -> Float[Array, "*out_in"]:
        """Return the weight in a wider type: a zero point subtracted, then scaled; exact in float32.

        In the type of activations throughout, XLA:GPU does this inside the product, which then reads 4 bits.
        """
        groups = self.values.reshape(*self.scale.shape, -1).astype(dtype)
        if self.zero is not None:
            groups = groups - self.zero.astype(dtype)[..., None]
        return (groups * self.scale.astype(dtype)[..., None]).reshape(self.values.shape)


class Fp8Products(StrEnum):
    """How a device multiplies by FP8 weights."""

    NATIVE = "native"  # FP8 by FP8; tokens are quantized too
    FUSED = "fused"  # the compiler widens the weight inside the product
    IN_PARTS = "in parts"  # widens some rows at a time, which XLA:CPU would not do by itself


def choose_fp8_products(mesh: DeviceMesh) -> Fp8Products:
    """Return how devices multiply by FP8: GPUs since Ada natively; TPUs up to v6e have no such product."""
    if mesh.is_host:
        return Fp8Products.IN_PARTS
    is_native = mesh.platform == "gpu" and cuda_capability(mesh.devices[0]) >= ADA
    return Fp8Products.NATIVE if is_native else Fp8Products.FUSED


def quantize_tokens(
    x: Float[Array, "*token_in"], num_in_axes: int, dtype: DTypeLike = jnp.int8
) -> tuple[Num[Array, "*token_in"], Float32[Array, "*token"]]:
    """Return 8-bit values and a scale per token.

    The scale of a token with a NaN or infinity is NaN or infinite, and so is every product with it.
    """
    axes = tuple(range(-num_in_axes, 0))
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axes, keepdims=True)
    scale = jnp.where(largest == 0, 1, largest / (INT8_MAX if dtype == jnp.int8 else FP8_MAX))
    scaled = wide / scale
    return (jnp.round(scaled) if dtype == jnp.int8 else scaled).astype(dtype), jnp.squeeze(scale, axes)
