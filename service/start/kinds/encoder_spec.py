"""The plan of an encoder: model, dtype, sizes, device and bundle key. Reads no weights and traces nothing."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, override

import jax
import numpy as np

from service.bundles.lookup import bundle_key
from service.checkpoint.discover import LocatedCheckpoint
from service.compile.program import Executable, Program
from service.device.chips import USUAL_CHUNK_TOKENS
from service.device.memory import Device, usable_memory_bytes
from service.device.mesh import DeviceMesh
from service.encoder.shapes import CPU_SPLIT_FROM_TOKENS, EncoderShapes
from service.encoder.steps.names import compile_order, program_names, step_names
from service.errors import DoesNotFit, SettingsError
from service.models.encoders.registry import AnyEncoderConfig, any_encoder_weight_specs, read_encoder_config
from service.models.encoders.rotary.config import RotaryConfig
from service.models.encoders.rotary.final_norm import final_norm
from service.models.encoders.sentence import SentenceConfig, read_sentence_config
from service.models.encoders.token_heads import TokenOutputs
from service.models.families.hub_keys import log_unknown_keys
from service.models.interface import LayerGroup
from service.models.layer_groups import layer_groups
from service.models.weight_shapes import weight_shapes
from service.settings import Settings
from service.start.context import StartContext
from service.start.dtype import choose_dtype
from service.start.kinds.model_spec import EngineParts, ModelSpec, ProgramNames, weights_bytes

if TYPE_CHECKING:
    from service.models.encoders.encoder import Encoder
    from service.models.encoders.rotary.encoder import RotaryEncoder
    from service.start.kinds.running_encoder import RunningEncoder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncoderSpec(ModelSpec):
    """The spec of an embedding model or reranker."""

    config: AnyEncoderConfig
    shapes: EncoderShapes
    sentence: SentenceConfig
    matryoshka_sizes: (
        tuple[int, ...] | None
    )  # dimensions that vectors can be truncated to; empty for any, None for none

    @cached_property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, divided into groups that are compiled separately."""
        return layer_groups(self.config.layers, self.specs)

    @property
    @override
    def memory_bytes(self) -> int:
        return self.weights_bytes

    @property
    @override
    def names(self) -> ProgramNames:
        shapes, groups = self.shapes, self.layer_groups
        smallest, largest = shapes.buckets[0], shapes.buckets[-1]
        return ProgramNames(
            program_names(shapes, groups),
            step_names(smallest, groups),
            compile_order(shapes, groups),
            step_names(largest, groups),
        )

    @property
    @override
    def log_fields(self) -> Mapping[str, Any]:
        return {"model_type": self.config.model_type, "vector_size": self.config.vector_size, **self.shape_fields}

    @property
    @override
    def shape_fields(self) -> Mapping[str, Any]:
        return {**asdict(self.shapes), "buckets": list(self.shapes.buckets)}

    @property
    @override
    def ready_fields(self) -> Mapping[str, Any]:
        return {"max_model_len": self.shapes.max_model_len, "vector_size": self.config.vector_size}

    @override
    def model(self) -> "Encoder | RotaryEncoder":
        from service.kernels.products.linear import choose_products

        products = choose_products(self.mesh, self.dtype)
        if isinstance(self.config, RotaryConfig):
            from service.models.encoders.rotary.encoder import RotaryEncoder

            return RotaryEncoder(self.config, self.dtype, products)
        from service.models.encoders.encoder import Encoder

        return Encoder(self.config, self.dtype, products)

    @override
    def programs(self, model: "Encoder | RotaryEncoder") -> Sequence[Program]:
        from service.encoder.steps.programs import encoder_programs

        return encoder_programs(model, self.shapes, weight_shapes(self.specs, self.mesh))

    @override
    def begin_state(self, executables: Mapping[str, Executable]) -> None:
        """Do nothing: an encoder has no device state except its weights."""

    @override
    def start(self, context: StartContext, engines: Sequence[EngineParts]) -> "RunningEncoder":
        from service.api.served import VectorFacts
        from service.encoder.runner import EncoderRunner
        from service.start.kinds.running_encoder import RunningEncoder

        [(weights, executables, _)] = engines
        runner = EncoderRunner(self.shapes, self.layer_groups, weights, executables)
        config, sentence = self.config, self.sentence
        vectors = VectorFacts(
            size=config.vector_size,
            is_normalized=config.vector.is_normalized and config.vector.kept_size is None,
            matryoshka_sizes=self.matryoshka_sizes,
            prompts=sentence.prompts,
            default_prompt=sentence.default_prompt,
            pools_prompts=config.vector.pools_prompts,
            is_score=config.vector.is_score,
            template=config.vector.template,
        )
        return RunningEncoder(context, runner, config.vocab_size, vectors, self.token_outputs(weights))

    def token_outputs(self, weights: Mapping[str, jax.Array]) -> TokenOutputs | None:
        """Return the heads for token outputs, with copies of their weights on the host; None for a reranker."""
        config = self.config
        if config.vector.is_score:
            return None
        heads = [name for head in config.vector.token_heads.names for name in (head, f"{head}.bias")]
        on_host = {name: np.asarray(weights[name]) for name in heads}
        if isinstance(config, RotaryConfig):
            return TokenOutputs(config.vector, on_host, final_norm(config, np.asarray(weights["final_norm"])))
        return TokenOutputs(config.vector, on_host)

    @override
    def run_once(self, weights: Mapping[str, jax.Array], executables: Mapping[str, Executable]) -> None:
        from service.encoder.runner import EncoderRunner

        EncoderRunner(self.shapes, self.layer_groups, weights, executables).run_all()


def choose_encoder_spec(
    settings: Settings, located: LocatedCheckpoint, devices: Sequence[Device], *, memory_share: float = 1.0
) -> EncoderSpec:
    """Choose dtype and sizes, and compute the bundle key; an encoder runs on one device.

    `memory_share` is ignored, since an encoder has no cache to size.

    Raises:
        UnsupportedModel: a feature of this model is not supported.
        SettingsError: the operator requested longer texts than the model has positions for, several devices or
            quantized weights.
        DoesNotFit: the weights exceed the device's memory.
        UnknownDeviceMemory: an accelerator does not report its memory.
    """
    if (settings.tensor_parallel or 1) > 1:
        raise SettingsError("TENSOR_PARALLEL", "must be 1 for an encoder, which runs on a single device.")
    if settings.data_parallel not in (1, "auto"):
        logger.warning("an encoder runs on one device, whatever DATA_PARALLEL is", extra={"checkpoint": located.uri})
    if settings.quantization != "none":
        raise SettingsError("QUANTIZATION", "must be none for an encoder, whose weights are served in DTYPE.")
    sentence = read_sentence_config(located.uri, located.sentence_files)
    config = read_encoder_config(located.uri, located.hub_config, located.sentence_files, located.weight_files)
    log_unknown_keys(located.uri, located.hub_config)
    mesh = DeviceMesh(tuple(devices[:1]))
    dtype = choose_dtype(settings.dtype, located.hub_config, mesh.platform)
    specs = any_encoder_weight_specs(config, dtype)
    needed_bytes = weights_bytes(specs, mesh)
    memory_bytes = usable_memory_bytes(mesh.devices, settings.device_memory_fraction)
    if needed_bytes > memory_bytes:
        raise DoesNotFit(
            needed_bytes=needed_bytes, available_bytes=memory_bytes, remedy="Use a narrower DTYPE or a larger device."
        )
    shapes = EncoderShapes(
        _max_text_tokens(settings, config, sentence),
        settings.max_prefill_tokens or USUAL_CHUNK_TOKENS,
        CPU_SPLIT_FROM_TOKENS if mesh.is_host else None,
    )
    key = bundle_key(config, dtype, shapes, mesh)
    return EncoderSpec(dtype, specs, mesh, key, config, shapes, sentence, _matryoshka_sizes(located.hub_config))


def _max_text_tokens(settings: Settings, config: AnyEncoderConfig, sentence: SentenceConfig) -> int:
    if settings.max_model_len is None:
        return min(config.context_len, sentence.max_tokens or config.context_len)
    if settings.max_model_len > config.context_len:
        message = f"is {settings.max_model_len}, but the model has positions for {config.context_len} tokens."
        raise SettingsError("MAX_MODEL_LEN", message)
    return settings.max_model_len


def _matryoshka_sizes(hub_config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the dimensions that the model was trained for, according to vLLM's keys."""
    if hub_config.get("matryoshka_dimensions"):
        return tuple(map(int, hub_config["matryoshka_dimensions"]))
    return () if hub_config.get("is_matryoshka") else None
