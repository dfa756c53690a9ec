"""Weights on their way before it is known where they belong: mostly that is the host's memory, and then they are there.

A start knows its devices when jax is imported; until then a processor is idle. Where no driver has made a device's file
the device will be a CPU, and what the weights are made of follows from the configuration alone. The plan has the last
word: what it does not agree with is dropped.
"""

import logging
from concurrent.futures import Future
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.layout import LevanterLayout
from service.checkpoint.load import Loaded, LoadLimits, load_on_host
from service.device.memory import expects_cpu, host_memory_bytes
from service.errors import CheckpointError, UnsupportedModel
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.models.weight_spec import WeightSpec
from service.settings import Settings
from service.weights.assembly import host_bytes

if TYPE_CHECKING:
    from service.start.spec import EnginePlan

logger = logging.getLogger(__name__)

# What does not fit is refused in words, by the plan; until then nothing may bring the process down.
LARGEST_SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True)
class ExpectedWeights:
    """What a plan will most likely ask for."""

    specs: tuple[WeightSpec, ...]
    dtype: np.dtype

    def is_of(self, plan: "EnginePlan") -> bool:
        """Whether the plan does ask for it."""
        return plan.mesh.is_host and (plan.specs, plan.dtype) == (self.specs, self.dtype)


def expected_weights(settings: Settings, located: LocatedCheckpoint) -> ExpectedWeights | None:
    """Return what weights a CPU would be asked to serve, unless this host has other devices or little memory."""
    if not expects_cpu() or settings.tensor_parallel not in (None, 1) or isinstance(located.layout, LevanterLayout):
        return None
    try:
        config = read_config(located.uri, located.hub_config)
    except UnsupportedModel:
        return None  # the plan will say so
    dtype = np.dtype("float32" if settings.dtype == "auto" else settings.dtype)  # as `engine_plan` does on a CPU
    expected = ExpectedWeights(decoder_weight_specs(config), dtype)
    fits = host_bytes(expected.specs, dtype) <= LARGEST_SHARE_OF_MEMORY * host_memory_bytes()
    return expected if fits else None


def load_ahead(
    located: LocatedCheckpoint,
    expected: ExpectedWeights,
    plan: "Future[EnginePlan]",
    limits: LoadLimits,
) -> Loaded[np.ndarray] | None:
    """Load what is expected, and return it if the plan agrees.

    Args:
        located: which checkpoint.
        expected: what to make of it.
        plan: what is made of it in the end; one that says otherwise ends the load.
        limits: what this may use; `cancelled` is set here.

    Raises:
        CheckpointError: the bytes did not come whole, or are not what their headers or the configuration say.
        BaseException: what the plan failed with.
    """
    is_other = Event()

    def compare(plan: "Future[EnginePlan]") -> None:
        if plan.exception() is not None or not expected.is_of(plan.result()):
            is_other.set()

    plan.add_done_callback(compare)
    own_limits = replace(limits, cancelled=is_other)
    loaded = None
    try:
        loaded = load_on_host(located, expected.specs, expected.dtype, own_limits)
    except CheckpointError:
        if not is_other.is_set():
            raise
    if expected.is_of(plan.result()):
        return loaded
    if loaded is not None:
        loaded.release()
    logger.info("the weights loaded ahead are not those of the plan; they are loaded again")
    return None
