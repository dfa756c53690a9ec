"""Reading of an adapter for the slots of a running engine."""

import hashlib
import logging
import time
from typing import TYPE_CHECKING

from service.checkpoint.adapters.host import host_adapter
from service.checkpoint.adapters.locate import locate_adapter
from service.checkpoint.adapters.read import read_updates
from service.checkpoint.limits import LoadLimits
from service.engine.request import Adapter
from service.observability.progress import Progress
from service.start.context import StartContext
from service.start.discover import opener
from service.start.niceness import LOAD_NICENESS, yield_to_steps

if TYPE_CHECKING:
    from service.start.kinds.engine_spec import EngineSpec

logger = logging.getLogger(__name__)


class AdapterReader:
    """Reads adapters of one model, on threads of the caller."""

    def __init__(self, context: StartContext, spec: "EngineSpec") -> None:
        """Remember what the model was started with."""
        assert spec.shapes.adapters is not None, "an engine without slots reads no adapters"
        self._settings, self._cache, self._spec = context.settings, context.cache, spec
        self._shapes = spec.shapes.adapters

    def __call__(self, name: str, uri: str) -> Adapter:
        """Read an adapter, verified like weights, and lay it out as a slot is.

        Raises:
            CheckpointError: it is refused, or its bytes did not come whole.
        """
        yield_to_steps(LOAD_NICENESS)
        begin_s = time.monotonic()
        located = locate_adapter(uri, opener(self._settings), "adapter")
        limits = LoadLimits(self._cache, Progress(), self._settings.stream_staging_bytes)
        spec, shapes = self._spec, self._shapes
        updates = read_updates(located, spec.specs, limits, max_rank=shapes.rank, slot_dtype=spec.dtype)
        digest = hashlib.sha256(f"{located.uri} {located.files.version}".encode()).digest()
        groups = spec.layer_groups
        adapter = host_adapter(name, digest, updates, specs=spec.specs, groups=groups, shapes=shapes, dtype=spec.dtype)
        facts = {"adapter": name, "uri": located.uri, "bytes": adapter.num_bytes}
        logger.info("loaded an adapter", extra={**facts, "seconds": round(time.monotonic() - begin_s, 3)})
        return adapter
