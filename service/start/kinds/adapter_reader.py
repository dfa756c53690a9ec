"""Reading of an adapter for the slots of a running engine."""

import hashlib
import logging
import time
from collections.abc import Sequence

import numpy as np

from service.checkpoint.adapters.host import host_adapter
from service.checkpoint.adapters.locate import locate_adapter
from service.checkpoint.adapters.read import read_updates
from service.checkpoint.limits import LoadLimits
from service.engine.request import Adapter
from service.models.adapter_arrays import AdapterShapes
from service.models.interface import LayerGroup
from service.models.weight_spec import WeightSpec
from service.observability.progress import Progress
from service.start.context import StartContext
from service.start.discover import opener
from service.start.niceness import LOAD_NICENESS, yield_to_steps

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
    ) -> None:
        """Remember the model.

        Args:
            context: the start of the model, with its settings and cache.
            specs: its weights.
            groups: its layers, as they were compiled.
            shapes: the number of slots, and the rank that each is padded to.
            dtype: the elements that the slots hold.
        """
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
        updates = read_updates(located, self._specs, limits, max_rank=self._shapes.rank, slot_dtype=self._dtype)
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
