"""Products with weights, on the devices that share them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, DTypeLike, Float, Int32

from service.device.mesh import MODEL_AXIS, DeviceMesh
from service.kernels.products.adapters import SlotWeights, add_adapters
from service.kernels.products.grouped import grouped_linear
from service.kernels.products.linear import PLAIN, Products, linear
from service.kernels.products.quantized import Fp8Products, GroupedWeight, QuantizedWeight
from service.models.adapter_arrays import A, B, Parts
from service.models.quantization import scale_name, zero_name

type NamedWeights = Mapping[str, NamedArray]  # those of a layer by their names in it
type Arrays = Mapping[str, Array]  # one device's parts of weights, and of their scales


@dataclass(frozen=True)
class TokenAdapters:
    """The adapters of a step's tokens, in one layer."""

    slots: Int32[Array, " token"]  # of each token; -1 for none
    parts: Mapping[str, Parts]  # of the layer's weights that adapters update


@dataclass(frozen=True)
class Multiply:
    """The ways in which a model multiplies by its weights."""

    products: Products = PLAIN
    fp8: Fp8Products = Fp8Products.FUSED  # of weights in FP8
    mesh: DeviceMesh | None = None  # devices that share each step; None for one
    spans: Int32[Array, "span 2"] | None = None  # the runs of rows that are tokens, which suffice; None for all rows
    adapters: TokenAdapters | None = None  # None for a step without adapters

    def __call__(
        self, x: NamedArray, weights: NamedWeights, name: str, axes: tuple[str, ...], dtype: DTypeLike | None = None
    ) -> NamedArray:
        """Multiply by a weight and sum over `axes`, its last ones."""
        weight = weights[name]
        kept = hax.eliminate_axes(x.axes, axes)
        out = linear(
            x.rearrange((*kept, *axes)).array,
            _stored({key: each.array for key, each in weights.items()}, name),
            self.products,
            num_in_axes=len(axes),
            dtype=dtype,
            fp8=self.fp8,
            spans=self.spans,
        )
        return self.adapted(hax.named(out, (*kept, *weight.axes[: -len(axes)])), x, weights, name, axes)

    def adapted(
        self, out: NamedArray, x: NamedArray, weights: NamedWeights, name: str, axes: tuple[str, ...]
    ) -> NamedArray:
        """Add the products of tokens with their adapters to those with a weight, if adapters update it."""
        if self.adapters is None or name + B not in weights:
            return out
        kept = hax.eliminate_axes(x.axes, axes)
        added = add_adapters(
            out.array,
            x.rearrange((*kept, *axes)).array,
            SlotWeights(weights[name + A].array, weights[name + B].array, self.adapters.parts[name]),
            self.adapters.slots,
            self.products,
        )
        return hax.named(added, out.axes)

    def is_token(self, num_rows: int) -> Bool[Array, " row"]:
        """Return which of a number of rows are tokens."""
        if self.spans is None:
            return jnp.ones(num_rows, bool)
        rows = jnp.arange(num_rows, dtype=jnp.int32)[:, None]
        return jnp.any((rows >= self.spans[None, :, 0]) & (rows < self.spans[None, :, 1]), axis=1)

    def grouped(
        self,
        rows: Float[Array, "row in"],
        weights: Arrays,
        name: str,
        sizes: Int32[Array, " group"],
        dtype: DTypeLike | None = None,
    ) -> Float[Array, "row *out"]:
        """Multiply rows, sorted by group, each by its group's part of a weight; see `grouped_linear`."""
        weight = _stored(weights, name)
        return grouped_linear(rows, weight, sizes, self.products, dtype=dtype, fp8=self.fp8)

    def summed_over_devices(
        self, function: Callable[[Arrays], Float[Array, "row out"]], weights: NamedWeights, *names: str
    ) -> Float[Array, "row out"]:
        """Call a function with each device's part of weights and of their scales; return the sum of the results."""
        keys = [key for name in names for key in (name, scale_name(name), zero_name(name)) if key in weights]
        arrays = {key: weights[key].array for key in keys}
        if self.mesh is None or self.mesh.num_devices == 1:
            return function(arrays)
        parts = {
            key: self.mesh.partition([axis.name for axis in weights[key].axes], array.shape)
            for key, array in arrays.items()
        }

        def on_each(own: Arrays) -> Float[Array, "row out"]:
            return jax.lax.psum(function(own), MODEL_AXIS)

        # A Pallas kernel does not declare how its results vary between devices, so that cannot be checked.
        mapped = jax.shard_map(
            on_each, mesh=self.mesh.named, in_specs=(parts,), out_specs=PartitionSpec(), check_vma=False
        )
        return mapped(arrays)

    def constrained(self, x: NamedArray) -> NamedArray:
        """Shard an array by the names of its axes, so that a sum over a split axis is completed by an all-reduce."""
        if self.mesh is None:
            return x
        return hax.named(self.mesh.constrain(x.array, [axis.name for axis in x.axes]), x.axes)


def scaled(x: NamedArray, multiplier: float) -> NamedArray:
    """Multiply by a number in float32, and round."""
    return x if multiplier == 1 else (x.astype(jnp.float32) * multiplier).astype(x.dtype)


def _stored(weights: Arrays, name: str) -> Array | QuantizedWeight | GroupedWeight:
    """Return a weight with the scales and zero points that lie beside it."""
    weight, scale = weights[name], weights.get(scale_name(name))
    if scale is None:
        return weight
    if weight.dtype not in (jnp.int4, jnp.float4_e2m1fn):
        return QuantizedWeight(weight, scale)
    return GroupedWeight(weight, scale, weights.get(zero_name(name)))
