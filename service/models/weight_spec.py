"""The arrays of a model, and the checkpoint tensors that each of them is made from; no jax."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from service.models.stored.layers import FLOATING, INTEGERS, LayerStorage, StoredTensor

FLOAT32 = np.dtype(np.float32)
# Of which a device has two in a byte, and the host one.
INT4, FP4 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.float4_e2m1fn)
FOUR_BITS = (INT4, FP4)
MODEL_PREFIX = "model."
BASE_PREFIXES = (MODEL_PREFIX, "transformer.")  # of the bare model's tensors in a model with a head
# How names of a part of a model with images begin, and what they are without. Files of several ages, and those of the
# text alone, which its own class saved, differ in this.
# Source: transformers `conversion_mapping.py` (llava, CLIPVisionModel), `models/idefics3/modeling_idefics3.py`
PARTS = (
    ("language_model.model.", ""),
    ("language_model.", ""),
    ("text_model.", ""),
    ("vision_tower.vision_model.", "vision_tower."),
)


def bare_name(name: str) -> str:
    """Return a tensor's name in the bare model."""
    return name_in_part(name.removeprefix(next((prefix for prefix in BASE_PREFIXES if name.startswith(prefix)), "")))


def name_in_part(name: str) -> str:
    """Return a tensor's name without what names the part of the model that it is in."""
    part, renamed = next((pair for pair in PARTS if name.startswith(pair[0])), ("", ""))
    return renamed + name.removeprefix(part)


@dataclass(frozen=True)
class TensorSource:
    """One tensor of a checkpoint, or some rows of it, and its shape as a part of an array.

    Of a weight that is stored packed, it is the tensor that a checkpoint that is not quantized has in its place.
    """

    name: str
    shape: tuple[int, ...]  # in the checkpoint, but for `is_transposed`
    view: tuple[int, ...]  # in the array, before concatenation
    copies: int = 1  # how often `view` repeats each index of the axis before the concatenated one, consecutively
    is_int8: bool = False  # in the checkpoint; others are of a floating type, packed, or integers
    is_integer: bool = False  # in the checkpoint: numbers that stay as they are
    packing: LayerStorage | None = None  # of a weight that several tensors hold
    rows: tuple[int, int] | None = None  # the first, and the one after the last, that are this part; None for all
    is_transposed: bool = False  # whether the checkpoint holds it with its last two axes exchanged
    made_from: "TensorSource | None" = None  # the packed weight that it is a part of: its scales or its zero points
    also: tuple[str, ...] = ()  # further names of a tensor that two parts of the model share

    @property
    def elements(self) -> tuple[int, int]:
        """The first element of the tensor that is part of the array, and the one after the last."""
        inner = math.prod(self.shape[1:])
        first, end = self.rows or (0, self.shape[0] if self.shape else 1)
        return first * inner, end * inner

    @property
    def bare_name(self) -> str:
        """Its name in the bare model."""
        return bare_name(self.name)

    @property
    def misfit(self) -> str | None:
        """Why the tensors of its storage cannot hold it; None if they can."""
        return None if self.packing is None else self.packing.misfit(self.shape)

    @property
    def stored(self) -> tuple[StoredTensor, ...]:
        """The tensors of the checkpoint that hold it."""
        if self.made_from is not None:
            return self.made_from.stored
        if self.packing is not None:
            return self.packing.tensors(self.name, self.shape)
        shape = (*self.shape[:-2], *self.shape[:-3:-1]) if self.is_transposed else self.shape
        dtypes = INTEGERS if self.is_integer else ("I8",) if self.is_int8 else FLOATING
        return (StoredTensor(self.name, shape, dtypes),)


@dataclass(frozen=True)
class WeightSpec:
    """One array on the device: its shape and dtype, the names of its axes, and the tensors that it is made from."""

    name: str
    axes: tuple[str, ...]  # Haliax axis names; sharding follows them
    shape: tuple[int, ...]
    sources: tuple[TensorSource, ...]
    concat_axis: int = 0  # along which several sources are concatenated; at 0, one follows the other in memory
    dtype: np.dtype = FLOAT32  # on the device; tensors of another one are cast, or quantized if there is a scale
    num_in_axes: int = 0  # the last ones, over which a product with the array sums; 0 if it is never quantized
    scale: str | None = None  # the array that products are multiplied by, with a number for each row
    is_finite: bool = False  # whether a checkpoint with a NaN or an infinite number in it is refused
    is_row_scale: bool = False  # whether it holds what quantizing its tensors computes for rows or groups
    unused: tuple[str, ...] = ()  # modules of the checkpoint beside those of the sources that the model does not run

    @property
    def num_bytes(self) -> int:
        """The size of the whole array on the host."""
        return math.prod(self.shape) * self.dtype.itemsize


DRAFT_PREFIX = "draft."  # of the names of the weights of what drafts, beside its target's


def prefixed(specs: Iterable[WeightSpec], prefix: str) -> tuple[WeightSpec, ...]:
    """Return weights, and the names of their scales, with a prefix."""
    return tuple(
        replace(spec, name=f"{prefix}{spec.name}", scale=spec.scale and f"{prefix}{spec.scale}") for spec in specs
    )


def device_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    """Return the size of an array on a device."""
    return -(-math.prod(shape) // 2) if dtype in FOUR_BITS else math.prod(shape) * dtype.itemsize
