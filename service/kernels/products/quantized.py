"""Products with weights in 8 bits: by activations that are quantized in the step, or by wide ones.

Source: Dettmers et al. 2022, arXiv:2208.07339, section 2.1 (absmax quantization, by token and by row).
"""

from enum import StrEnum
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Float32, Num

from service.device.chips import cuda_capability
from service.device.mesh import DeviceMesh
from service.kernels.limits import ADA, FP8_MAX, INT8_MAX

FP8 = jnp.float8_e4m3fn


class QuantizedWeight(NamedTuple):
    """A weight in 8 bits, and the scale of each of its rows."""

    values: Num[Array, "*out_in"]  # int8 or float8_e4m3fn
    scale: Float32[Array, "*out"]


class Fp8Products(StrEnum):
    """How a device multiplies by weights in FP8."""

    NATIVE = "native"  # FP8 by FP8; tokens are quantized too
    FUSED = "fused"  # the compiler widens the weight inside the product
    IN_PARTS = "in parts"  # some rows are widened and multiplied at a time, as no compiler of a CPU's would


def choose_fp8_products(mesh: DeviceMesh) -> Fp8Products:
    """Return how devices multiply by FP8: Ada and newer GPUs natively; TPUs up to v6e have no such product."""
    if mesh.is_host:
        return Fp8Products.IN_PARTS
    is_native = mesh.platform == "gpu" and cuda_capability(mesh.devices[0]) >= ADA
    return Fp8Products.NATIVE if is_native else Fp8Products.FUSED


def quantize_tokens(
    x: Float[Array, "*token_in"], num_in_axes: int, dtype: DTypeLike = jnp.int8
) -> tuple[Num[Array, "*token_in"], Float32[Array, "*token"]]:
    """Return values in 8 bits, and for each token the scale by which they are multiplied.

    A token with a NaN or an infinity has that as its scale, so that every product with it is one too.
    """
    axes = tuple(range(-num_in_axes, 0))
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axes, keepdims=True)
    scale = jnp.where(largest == 0, 1, largest / (INT8_MAX if dtype == jnp.int8 else FP8_MAX))
    scaled = wide / scale
    return (jnp.round(scaled) if dtype == jnp.int8 else scaled).astype(dtype), jnp.squeeze(scale, axes)
