"""What a model is made of: its arrays, and the tensors of a checkpoint that each of them comes from; no jax."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSource:
    """One tensor of a checkpoint, under Hugging Face's names, and the shape it is seen in."""

    name: str
    shape: tuple[int, ...]  # as it is stored
    view: tuple[int, ...]  # as it is served, before concatenation
    copies: int = 1  # each index of the axis before the joined one comes so many times in `view`, side by side


@dataclass(frozen=True)
class WeightSpec:
    """One array on the device: its shape, the names of its axes, and the tensors that it is made of."""

    name: str
    axes: tuple[str, ...]  # Haliax axis names; sharding follows them
    shape: tuple[int, ...]
    sources: tuple[TensorSource, ...]
    concat_axis: int = 0  # where the sources are joined, if there are several
