"""The engine to build: model, dtype, sizes, devices, kernel and bundle key. Reads no weight and traces nothing."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from service.bundles.key import BundleKey
from service.bundles.lookup import bundle_key
from service.checkpoint.discover import LocatedCheckpoint
from service.device.memory import Device, device_memory_bytes
from service.device.mesh import DeviceMesh, choose_mesh
from service.engine.shapes import EngineShapes
from service.engine.sizing import ModelSize, fit_engine
from service.kernels.choice import HeadShape, KernelChoice, choose_kernel
from service.models.config import DecoderConfig
from service.models.decoder_weights import decoder_weight_specs
from service.models.interface import LayerGroup, PagedDecoder
from service.models.layer_groups import decoder_layer_groups
from service.models.registry import read_config
from service.models.weight_spec import WeightSpec
from service.settings import Settings
from service.start.dtype import choose_dtype

logger = logging.getLogger(__name__)

# On a CPU the device's memory is everybody's; on an accelerator it is ours.
CPU_MEMORY_FRACTION = 0.5
ACCELERATOR_MEMORY_FRACTION = 0.9


@dataclass(frozen=True)
class EngineSpec:
    """Everything about an engine that is known before its weights are loaded."""

    config: DecoderConfig
    dtype: np.dtype
    shapes: EngineShapes
    specs: tuple[WeightSpec, ...]
    mesh: DeviceMesh
    kernel: KernelChoice
    key: BundleKey

    @cached_property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, cut into groups that are compiled separately."""
        return decoder_layer_groups(self.config, self.specs)

    @property
    def weights_bytes(self) -> int:
        """What the weights take on each device."""
        return _weights_bytes(self.specs, self.dtype, self.mesh)

    def recipe(self) -> list[dict[str, Any]]:
        """Return how each weight is made and split, as plain JSON."""
        return [
            asdict(spec) | {"dtype": self.dtype.name, "sharding": list(self.mesh.partition(spec.axes, spec.shape))}
            for spec in self.specs
        ]

    def model(self) -> PagedDecoder:
        """Return the model to trace; imports Haliax, so only a start without a bundle asks."""
        from service.kernels.linear import choose_num_splits
        from service.models.decoder import Decoder

        num_splits = choose_num_splits(self.mesh, self.dtype)
        kernel = self.kernel.kernel(self.shapes.layout)
        return Decoder(self.config, self.dtype, kernel, num_splits, self.mesh)


def choose_engine_spec(settings: Settings, located: LocatedCheckpoint, devices: Sequence[Device]) -> EngineSpec:
    """Choose devices, dtype and sizes, and name the bundle that they need.

    Raises:
        UnsupportedModel: the family, or a feature of this model, is not served.
        SettingsError: the operator asks for more context than the model was made for, or for a number of devices that
            is not there or that the model cannot be split over.
        DoesNotFit: the devices are too small.
    """
    config = read_config(located.uri, located.hub_config)
    sizes = {"num_attention_heads": config.num_heads, "intermediate_size": config.mlp_size}
    mesh = choose_mesh(devices, wanted=settings.tensor_parallel, sizes=sizes)
    config = config.split_over(mesh.num_devices)
    dtype = choose_dtype(settings.dtype, located.hub_config, mesh.platform)
    specs = decoder_weight_specs(config)
    kernel = _choose_kernel(config, dtype, mesh)
    default_fraction = CPU_MEMORY_FRACTION if mesh.platform == "cpu" else ACCELERATOR_MEMORY_FRACTION
    fraction = settings.device_memory_fraction or default_fraction
    shapes = fit_engine(
        ModelSize(
            context_len=config.context_len,
            vocab_size=config.vocab_size,
            weights_bytes=_weights_bytes(specs, dtype, mesh),
            kv_bytes_per_token=config.kv_bytes_per_token(dtype.itemsize)
            * kernel.cached_head_dim
            // config.head_dim
            // mesh.num_devices,
            has_slot_cache=kernel.has_slot_cache,
        ),
        memory_bytes=int(device_memory_bytes(mesh.devices) * fraction),
        max_num_seqs=settings.max_num_seqs,
        page_size=settings.page_size,
        max_prefill_tokens=settings.max_prefill_tokens,
        max_model_len=settings.max_model_len,
    )
    return EngineSpec(config, dtype, shapes, specs, mesh, kernel, bundle_key(config, dtype, shapes, mesh))


def _choose_kernel(config: DecoderConfig, dtype: np.dtype, mesh: DeviceMesh) -> KernelChoice:
    """Choose how attention is done, and say so; a slow way is never taken in silence."""
    device = mesh.devices[0]
    # Each device has its part of the heads.
    choice = choose_kernel(device, HeadShape(config.num_kv_heads // mesh.num_devices, config.head_dim, dtype))
    facts = {"kernel": choice.name.value, "device": device.device_kind}
    if choice.obstacle is not None:
        message = "the device's attention kernel cannot serve this model; the slow reference does"
        logger.warning(message, extra={**facts, "reason": choice.obstacle})
        return choice
    if choice.cached_head_dim != config.head_dim:
        facts |= {"head_dim": config.head_dim, "cached_head_dim": choice.cached_head_dim}
    logger.info("attention kernel", extra=facts)
    return choice


def _weights_bytes(specs: Iterable[WeightSpec], dtype: np.dtype, mesh: DeviceMesh) -> int:
    return sum(math.prod(mesh.shard_shape(spec.axes, spec.shape)) for spec in specs) * dtype.itemsize
