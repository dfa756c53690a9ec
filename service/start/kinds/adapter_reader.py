"""Reading of an adapter for the slots of a running engine."""

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from service.checkpoint.adapters.host import host_adapter
from service.checkpoint.adapters.locate import locate_adapter
from service.checkpoint.adapters.read import SlotLimits, read_updates
from service.checkpoint.limits import LoadLimits
from service.engine.request import Adapter
from service.models.adapter_arrays import AdapterShapes
from service.models.interface import LayerGroup
from service.models.weight_spec import WeightSpec
from service.observability.progress import Progress
from service.start.context import StartContext
from service.start.discover import opener
from service.start.niceness import LOAD_NICENESS, yield_to_steps
from service.weights.assembly import assemble_weights
from service.weights.low_rank import LowRankUpdate

logger = logging.getLogger(__name__)


class AdapterReader:
    """Reads adapters of one model, on threads of the caller."""

    def __init__(
        self,
        context: StartContext,
        specs: Sequence[WeightSpec],
        groups: Sequence[LayerGroup],
        shapes: AdapterShapes,
        *,
        dtype: np.dtype,
        weights: Mapping[str, jax.Array],
    ) -> None:
        """Remember the model.

        Args:
            context: the start of the model, with its settings and cache.
            specs: its weights.
            groups: its layers, as they were compiled.
            shapes: the number of slots, and the rank that each is padded to.
            dtype: the elements that the slots hold.
            weights: the model's arrays, with which copies in an adapter's file are compared.
        """
        self._weights = weights
        self._settings, self._cache = context.settings, context.cache
        self._specs, self._groups, self._shapes, self._dtype = specs, groups, shapes, dtype

    def __call__(self, name: str, uri: str) -> Adapter:
        """Read an adapter, verified like weights, and lay it out as a slot is.

        Raises:
            CheckpointError: it is refused, or its bytes did not come whole.
        """
        yield_to_steps(LOAD_NICENESS)
        begin_s = time.monotonic()
        located = locate_adapter(uri, opener(self._settings), "adapter")
        limits = LoadLimits(self._cache, Progress(), self._settings.stream_staging_bytes)
        found = read_updates(located, self._specs, limits, SlotLimits(self._shapes.rank, self._dtype, self._is_own))
        updates = {name: update for name, update in found.items() if isinstance(update, LowRankUpdate)}
        digest = hashlib.sha256(f"{located.uri} {located.files.version}".encode()).digest()
        adapter = host_adapter(
            *(name, digest, updates),
            specs=self._specs,
            groups=self._groups,
            shapes=self._shapes,
            dtype=self._dtype,
        )
        facts = {"adapter": name, "uri": located.uri, "bytes": adapter.num_bytes}
        logger.info("loaded an adapter", extra={**facts, "seconds": round(time.monotonic() - begin_s, 3)})
        return adapter

    def _is_own(self, tensor: str, values: np.ndarray) -> bool:
        """Return whether a tensor, loaded as the model's own is, gives the arrays that the model has."""
        specs = [spec for spec in self._specs if spec.sources and {source.name for source in spec.sources} == {tensor}]
        if not specs:  # it is one of several that an array joins
            return False
        made = assemble_weights(specs, {tensor: values}, mesh=None)
        return all(np.array_equal(made[name], np.asarray(self._weights[name])) for name in made)
