"""Reading of an adapter: its tensors, verified like those of any checkpoint, as updates of a model's weights.

Before any tensor is read, they are matched with the linear layers of the model. They say which layers an adapter
updates: PEFT writes them only for those that `target_modules`, `exclude_modules` and `layers_to_transform` choose.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from service.checkpoint.adapters.locate import WEIGHTS, LocatedAdapter
from service.checkpoint.limits import LoadLimits
from service.errors import RefusedAdapter
from service.models.adapted import SUFFIX, adapted_tensors
from service.models.weight_spec import FLOAT32, TensorSource, WeightSpec, bare_name
from service.weights.headers import read_headers
from service.weights.low_rank import LowRankUpdate
from service.weights.safetensors import TensorEntry
from service.weights.stream import stream_weights

logger = logging.getLogger(__name__)

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"
# Parts of the names of tensors that are not served, with what they are.
OTHERS = {
    ".lora_magnitude_vector": "DoRA is not served",
    ".lora_embedding_": "updates of embeddings are not served",
    ".lora_B.bias": "biases of adapters are not served",
    ".bias": "trained biases are not served",
}


@dataclass(frozen=True)
class LayerUpdate:
    """The tensors of one layer's update."""

    tensor: TensorSource  # of the model, which is updated
    module: str  # the layer's name in the adapter
    rank: int
    scale: float

    @property
    def specs(self) -> tuple[WeightSpec, WeightSpec]:
        """The arrays A, [rank, in], and B, [out, rank]."""
        num_out, num_in = self.tensor.shape
        shapes = {A: (self.rank, num_in), B: (num_out, self.rank)}
        sources = (TensorSource(f"{PREFIX}{self.module}{end}", shape, shape) for end, shape in shapes.items())
        first, second = (WeightSpec(s.name, ("row", "column"), s.shape, (s,)) for s in sources)
        return first, second


def read_updates(
    adapter: LocatedAdapter,
    specs: Sequence[WeightSpec],
    limits: LoadLimits,
    max_rank: int | None = None,
    slot_dtype: np.dtype | None = None,
) -> dict[str, LowRankUpdate]:
    """Read the updates of a model's weights, by the names of the model's tensors.

    Args:
        adapter: the adapter.
        specs: the weights of the model.
        limits: the resources of the load.
        max_rank: of the slot that the adapter is for; None if it is merged into the weights.
        slot_dtype: of that slot.

    Raises:
        RefusedAdapter: the adapter is of another model, of a kind that is not served, or not finite.
        CheckpointError: the bytes did not come whole, or are not what their header says.
    """
    files = adapter.files
    with files.source.open_files(
        files.objects,
        [adapter.weights],
        cache=limits.cache,
        progress=limits.progress,
        cancelled=limits.cancelled,
    ) as opened:
        [header] = read_headers(opened.files, opened.budget)
        layers = match_tensors(adapter, header.entries, specs, max_rank)
        parts = [part for layer in layers for part in layer.specs]
        streamed = stream_weights(parts, opened, max_staging_bytes=limits.max_staging_bytes)
        opened.cache_copies(streamed.file_sums, streamed.disk_fault)
    opened.release()
    # All arrays are parts of one allocation, which ends with the last of them.
    arrays = {name: np.asarray(array) for name, array in streamed.weights.items()}
    dtypes = {source.name: slot_dtype or spec.dtype for spec in specs for source in spec.sources}
    updates = {layer.tensor.name: _update(adapter, layer, arrays, dtypes[layer.tensor.name]) for layer in layers}
    if slot_dtype is not None:
        _check_elements(adapter, updates, slot_dtype)
    facts = {"uri": adapter.uri, "base": adapter.config.base, "layers": len(layers)}
    logger.info("read an adapter", extra={**facts, "max_rank": max(layer.rank for layer in layers)})
    return updates


def _check_elements(adapter: LocatedAdapter, updates: dict[str, LowRankUpdate], dtype: np.dtype) -> None:
    """Check that a slot can hold the narrow matrices themselves: an infinite one would reach other tokens."""
    limit = float(ml_dtypes.finfo(dtype).max)
    for tensor, update in updates.items():
        if not max(np.abs(part).max() for part in (update.a, update.b)) < limit:
            reason = f"has a value, scale included, beyond the {limit:.3g} that {dtype.name} holds"
            raise RefusedAdapter(adapter.uri, WEIGHTS, tensor, reason)


def _update(
    adapter: LocatedAdapter, layer: LayerUpdate, arrays: dict[str, np.ndarray], dtype: np.dtype
) -> LowRankUpdate:
    """Return one layer's update, which fits into the range of the weight's type."""
    first, second = layer.specs
    for spec in (first, second):
        if not np.isfinite(arrays[spec.name]).all():
            raise RefusedAdapter(adapter.uri, WEIGHTS, spec.name, "has a value that is NaN or infinite")
    with np.errstate(over="ignore"):
        update = LowRankUpdate(arrays[first.name], arrays[second.name] * np.float32(layer.scale))
    # Weights in 8 bits have scales, so they hold what float32 does.
    limit = float(ml_dtypes.finfo(dtype if dtype.itemsize > 1 else FLOAT32).max)
    if not update.bound < limit:
        reason = f"its product with {first.name!r} may reach {update.bound:.3g}; {dtype.name} holds up to {limit:.3g}"
        raise RefusedAdapter(adapter.uri, WEIGHTS, second.name, reason)
    return update


def match_tensors(
    adapter: LocatedAdapter,
    entries: Mapping[str, TensorEntry],
    specs: Sequence[WeightSpec],
    max_rank: int | None = None,
) -> list[LayerUpdate]:
    """Match an adapter's tensors with the layers of a model.

    Args:
        adapter: the adapter.
        entries: the header of its file.
        specs: the weights of the model.
        max_rank: of the slot that the adapter is for; None if it is merged into the weights.

    Raises:
        RefusedAdapter: a tensor is of another model, lacks its partner, or is not an update of a linear layer.
    """
    layers = {source.bare_name: source for source in adapted_tensors(specs).values()}
    others = {source.bare_name for spec in specs for source in spec.sources}
    modules = dict.fromkeys(_module(adapter, name) for name in entries)
    if not modules:
        raise RefusedAdapter(adapter.uri, WEIGHTS, "tensors", "there are none")
    found: list[LayerUpdate] = []
    for module in modules:
        tensor = layers.get(bare_name(f"{module}{SUFFIX}"))
        if tensor is None:
            raise RefusedAdapter(adapter.uri, WEIGHTS, f"{PREFIX}{module}", _unserved(adapter, module, others))
        if tensor.is_int8 and max_rank is None:
            reason = f"the checkpoint stores {tensor.name!r} in int8, which takes no update. Merge before quantizing"
            raise RefusedAdapter(adapter.uri, WEIGHTS, f"{PREFIX}{module}", reason)
        if max_rank is None and tensor.packing is not None and tensor.packing.is_kept:
            reason = (
                f"{tensor.name!r} stays in 4 bits, which take no update. Serve the adapter in a slot (MAX_LORAS), or "
                "set QUANTIZATION=int8"
            )
            raise RefusedAdapter(adapter.uri, WEIGHTS, f"{PREFIX}{module}", reason)
        rank = adapter.config.rank_of(module)
        if max_rank is not None and rank > max_rank:
            raise RefusedAdapter(adapter.uri, WEIGHTS, module, f"has rank {rank}; MAX_LORA_RANK is {max_rank}")
        found.append(LayerUpdate(tensor, module, rank, adapter.config.scale_of(module)))
        _check_shapes(adapter, found[-1], entries)
    return found


def _module(adapter: LocatedAdapter, name: str) -> str:
    """Return the layer of a tensor, by its name in the base model."""
    end = next((end for end in (A, B) if name.endswith(end)), None)
    if end is None or not name.startswith(PREFIX):
        reason = next((reason for part, reason in OTHERS.items() if part in name), None)
        reason = reason or f"is no update of a linear layer, whose names begin with {PREFIX!r} and end with {A!r}"
        raise RefusedAdapter(adapter.uri, WEIGHTS, name, reason)
    return name.removeprefix(PREFIX).removesuffix(end)


def _unserved(adapter: LocatedAdapter, module: str, others: set[str]) -> str:
    """Return why no layer has this name."""
    if bare_name(f"{module}{SUFFIX}") in others or ".experts" in module:
        return (
            "only linear layers of attention and of dense feed-forwards are adapted, not embeddings, heads or experts"
        )
    return f"the model has no such layer; the adapter was trained on {adapter.config.base!r}"


def _check_shapes(adapter: LocatedAdapter, update: LayerUpdate, entries: Mapping[str, TensorEntry]) -> None:
    for spec in update.specs:
        entry = entries.get(spec.name)
        if entry is None:
            raise RefusedAdapter(adapter.uri, WEIGHTS, spec.name, "is missing, while its partner is there")
        if entry.shape != spec.shape:
            raise RefusedAdapter(
                adapter.uri,
                WEIGHTS,
                spec.name,
                f"has shape {list(entry.shape)}; rank {update.rank} of the configuration and {update.tensor.name!r} of "
                f"the model make it {list(spec.shape)}. The adapter was trained on {adapter.config.base!r}",
            )
