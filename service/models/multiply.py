"""Products with weights, on the devices that share them."""

from collections.abc import Mapping
from dataclasses import dataclass

import haliax as hax
from haliax import NamedArray
from jaxtyping import DTypeLike

from service.device.mesh import DeviceMesh
from service.kernels.products.linear import PLAIN, Products, linear
from service.kernels.products.quantized import Fp8Products, QuantizedWeight
from service.models.quantization import scale_name

type NamedWeights = Mapping[str, NamedArray]  # those of a layer by their names in it


@dataclass(frozen=True)
class Multiply:
    """The ways in which a model multiplies by its weights."""

    products: Products = PLAIN
    fp8: Fp8Products = Fp8Products.FUSED  # of weights in FP8
    mesh: DeviceMesh | None = None  # devices that share each step; None for one

    def __call__(
        self, x: NamedArray, weights: NamedWeights, name: str, axes: tuple[str, ...], dtype: DTypeLike | None = None
    ) -> NamedArray:
        """Multiply by a weight and sum over `axes`, its last ones."""
        weight, scale = weights[name], weights.get(scale_name(name))
        kept = hax.eliminate_axes(x.axes, axes)
        out = linear(
            x.rearrange((*kept, *axes)).array,
            weight.array if scale is None else QuantizedWeight(weight.array, scale.array),
            self.products,
            num_in_axes=len(axes),
            dtype=dtype,
            fp8=self.fp8,
        )
        return hax.named(out, (*kept, *weight.axes[: -len(axes)]))

    def constrained(self, x: NamedArray) -> NamedArray:
        """Shard an array by the names of its axes, so that a sum over a split axis is completed by an all-reduce."""
        if self.mesh is None:
            return x
        return hax.named(self.mesh.constrain(x.array, [axis.name for axis in x.axes]), x.axes)
