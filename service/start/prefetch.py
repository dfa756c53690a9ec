"""Speculative prefetching of weights into host memory while jax imports, for CPUs.

A start knows its devices only after jax is imported; until then a processor is idle. If there is no accelerator device
file, the device will be a CPU, and the configuration determines the weights. The engine's spec is authoritative:
weights that it does not need are dropped.
"""

import logging
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.layout import LevanterLayout
from service.checkpoint.load import LoadedWeights, load_on_host
from service.device.memory import expects_cpu, host_memory_bytes
from service.errors import CheckpointError, UnsupportedModel
from service.models.decoder_weights import decoder_weight_specs
from service.models.description import DecoderConfig
from service.models.encoders.registry import any_encoder_weight_specs, is_encoder, read_encoder_config
from service.models.mtp import HAS_MTP, mtp_weight_specs, read_mtp
from service.models.quantization import Quantization, kept_storage
from service.models.registry import read_config
from service.models.weight_spec import DRAFT_PREFIX, FOUR_BITS, WeightSpec, prefixed
from service.settings import MODEL_MODES, Settings
from service.start.context import StartContext
from service.start.dtype import HostDtypes, choose_dtype, choose_host_dtypes
from service.start.progress import Phase
from service.weights.assembly import host_bytes

if TYPE_CHECKING:
    from service.start.kinds.model_spec import ModelSpec

logger = logging.getLogger(__name__)

# The spec refuses weights that do not fit with a message; a prefetch must not exhaust the host before that.
LARGEST_SHARE_OF_MEMORY = 0.5


class Cancellation(threading.Event):
    """An event that is also set when another one is."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        """Return whether either event is set."""
        return super().is_set() or self._other.is_set()


@dataclass(frozen=True)
class ExpectedWeights:
    """The weights that a CPU would serve, and an event that cancels their prefetch."""

    specs: tuple[WeightSpec, ...]
    cancelled: threading.Event

    def match(self, spec: "ModelSpec") -> bool:
        """Return whether the model needs exactly these weights."""
        return spec.mesh.is_host and spec.own_specs == self.specs


@dataclass(frozen=True)
class PrefetchedWeights:
    """Prefetched weights in host memory."""

    loaded: LoadedWeights[np.ndarray]
    begin_s: float  # when the prefetch began, in seconds since the process began


def expect_weights(context: StartContext, checkpoint: LocatedCheckpoint) -> ExpectedWeights | None:
    """Predict which weights a CPU would serve.

    Returns None on a host with accelerators or little memory, or if the devices are already known.
    """
    if context.devices is not None:
        return None
    settings = context.settings
    if not expects_cpu() or settings.tensor_parallel not in (None, 1) or isinstance(checkpoint.layout, LevanterLayout):
        return None
    return _expected(settings, checkpoint, Cancellation(context.failed))


def _expected(settings: Settings, checkpoint: LocatedCheckpoint, cancelled: threading.Event) -> ExpectedWeights | None:
    try:
        specs = loaded_specs(settings, checkpoint)
    except UnsupportedModel:
        return None  # the engine's spec raises it
    if any(spec.dtype in FOUR_BITS for spec in specs):
        return None  # they do not stay in the host's arrays
    fits = host_bytes(specs) <= LARGEST_SHARE_OF_MEMORY * host_memory_bytes()
    return ExpectedWeights(specs, cancelled) if fits else None


def loaded_specs(settings: Settings, checkpoint: LocatedCheckpoint) -> tuple[WeightSpec, ...]:
    """Return the weights of a checkpoint that one CPU would load, those of a layer that drafts included.

    Raises:
        UnsupportedModel: the family or a feature of this model is not supported.
    """
    specs = weight_specs(settings, checkpoint)
    if not checkpoint.hub_config.get(HAS_MTP) or settings.draft_model_uri or settings.speculation not in MODEL_MODES:
        return specs
    decoder, dtypes, quantization = _decoder(settings, checkpoint)
    mtp = read_mtp(checkpoint.hub_config, decoder)
    if mtp is None:
        return specs
    if quantization is Quantization.INT4:
        quantization = Quantization.INT8
    own = mtp_weight_specs(mtp, dtypes.activations, quantization, dtypes.weights)
    return (*specs, *prefixed(own, DRAFT_PREFIX))


def weight_specs(settings: Settings, checkpoint: LocatedCheckpoint) -> tuple[WeightSpec, ...]:
    """Return the weights of a checkpoint that one CPU would serve.

    Raises:
        UnsupportedModel: the family or a feature of this model is not supported.
    """
    uri, hub_config = checkpoint.uri, checkpoint.hub_config
    if is_encoder(hub_config, checkpoint.sentence_files):
        config = read_encoder_config(uri, hub_config, checkpoint.sentence_files, checkpoint.weight_files)
        return any_encoder_weight_specs(config, choose_dtype(settings.dtype, hub_config, "cpu"))
    decoder, dtypes, quantization = _decoder(settings, checkpoint)
    return decoder_weight_specs(decoder, dtypes.activations, quantization, dtypes.weights)


def _decoder(settings: Settings, checkpoint: LocatedCheckpoint) -> tuple[DecoderConfig, HostDtypes, Quantization]:
    """Return the description of a decoder, its dtypes and the storage of its products on a CPU."""
    decoder = read_config(checkpoint.uri, checkpoint.hub_config, settings.max_model_len)
    dtypes = choose_host_dtypes(settings.dtype, checkpoint.hub_config, may_stay_stored=True)
    quantization = Quantization(settings.quantization)
    storage = kept_storage(decoder.layer_storage, quantization, "cpu")
    return replace(decoder, layer_storage=storage), dtypes, quantization


def prefetch_weights(
    context: StartContext, checkpoint: LocatedCheckpoint, expected_weights: ExpectedWeights | None
) -> PrefetchedWeights | None:
    """Load the expected weights into host memory.

    Returns None if there are no expected weights, or if the engine needs different ones.

    Raises:
        CheckpointError: the weights could not be read, or contradict their headers or the configuration.
    """
    if expected_weights is None:
        return None
    limits = replace(context.load_limits, cancelled=expected_weights.cancelled)
    begin_s = context.progress.elapsed_s()
    with context.progress.part(Phase.WEIGHTS, "prefetch"):
        try:
            loaded = load_on_host(checkpoint, expected_weights.specs, limits)
        except CheckpointError:
            if expected_weights.cancelled.is_set():
                return None
            raise
    return PrefetchedWeights(loaded, begin_s)


def check_prefetch(_: StartContext, expected_weights: ExpectedWeights | None, spec: "ModelSpec") -> None:
    """Cancel the prefetch if the engine needs different weights."""
    if expected_weights is not None and not expected_weights.match(spec):
        logger.info("the engine needs different weights than were prefetched; loading them")
        expected_weights.cancelled.set()
