"""Reading of an adapter: its tensors, verified like those of any checkpoint, as updates of a model's weights."""

import logging
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from service.checkpoint.adapters.locate import WEIGHTS, LocatedAdapter
from service.checkpoint.adapters.tensors import LayerUpdate, match_tensors
from service.checkpoint.limits import LoadLimits
from service.errors import RefusedAdapter
from service.models.weight_spec import FLOAT32, WeightSpec
from service.weights.headers import read_headers
from service.weights.low_rank import LowRankUpdate
from service.weights.stream import WeightTarget, stream_weights

logger = logging.getLogger(__name__)


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
        target = WeightTarget(tuple(s for layer in layers for s in layer.specs), None, limits.max_staging_bytes)
        streamed = stream_weights(target, opened.files, opened.progress, opened.budget)
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
