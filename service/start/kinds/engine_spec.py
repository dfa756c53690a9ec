"""The plan of an engine: model, dtype, sizes, devices, kernel and bundle key. Reads no weights and traces nothing."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, override

import jax
import numpy as np

from service.bundles.key import BundleKey
from service.bundles.lookup import bundle_key
from service.checkpoint.discover import LocatedCheckpoint
from service.compile.program import Executable, Program
from service.device.chips import chunk_tokens
from service.device.memory import Device, usable_memory_bytes
from service.device.mesh import DeviceMesh, choose_mesh, split_devices
from service.device.native.library import native_code
from service.engine.limits import MAX_DRAFTS
from service.engine.shapes import EngineShapes, MemoryShapes, RowShapes
from service.engine.sizing import ModelSize, engine_bytes, fit_engine, sequences_with_states
from service.engine.steps.keys import (
    ProgramKey,
    attention_keys,
    compile_order,
    draft_keys,
    encoder_keys,
    first_keys,
    program_keys,
    sufficient_keys,
)
from service.errors import DoesNotFit, SettingsError
from service.kernels.choice import KernelChoices, choose_kernels
from service.kernels.limits import skips_padding
from service.models.adapter_arrays import AdapterShapes, adapter_specs, slot_bytes
from service.models.decoder_weights import decoder_weight_specs
from service.models.description import DecoderConfig, ImageEncoder, PatchEncoder
from service.models.eagle3 import is_eagle3
from service.models.families.hub_keys import log_unknown_keys
from service.models.interface import LayerGroup, PagedDecoder
from service.models.layer_groups import decoder_groups
from service.models.layer_groups import encoder_groups as groups_of_encoder
from service.models.mtp import read_mtp
from service.models.quantization import MAX_INT8_ROW, Quantization, kept_storage, layers_quantization
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.models.weight_spec import WeightSpec
from service.settings import MODEL_MODES, Settings, SpeculationMode
from service.start.context import StartContext
from service.start.dtype import NumberFormats, choose_formats
from service.start.kinds.data_parallel import choose_data_parallel
from service.start.kinds.decoder import choose_kernel, find_kernel_fault, head_shapes, make_decoder, position_bytes
from service.start.kinds.draft_spec import DraftSpec, choose_draft, without_prefix
from service.start.kinds.head_spec import choose_head, choose_mtp
from service.start.kinds.model_spec import EngineParts, ModelSpec, ProgramNames, weights_bytes

if TYPE_CHECKING:
    from service.engine.drafter import Drafter
    from service.engine.runner import DeviceState
    from service.start.kinds.running_engine import RunningEngine

logger = logging.getLogger(__name__)

# Of images of any shape, in tokens: the largest unless MAX_IMAGE_TOKENS is set, and smaller sizes that are compiled.
MAX_IMAGE_ROWS, PADDED_ROWS = 1024, (64, 256)
PLACE_ROWS = 64
MAX_KEPT_ROWS = 8192
NOTHING_DRAFTS = (
    "is draft, which needs DRAFT_MODEL_URI: the checkpoint brings no layer that predicts further tokens, or one that "
    "is not served."
)


@dataclass(frozen=True)
class EngineSpec(ModelSpec):
    """The spec of a generative model."""

    config: DecoderConfig
    shapes: EngineShapes
    kernel: KernelChoices
    formats: NumberFormats
    total_bytes: int  # of weights and caches, on each device
    other_meshes: tuple[DeviceMesh, ...] = ()  # of the engines after the first
    draft: DraftSpec | None = None  # the model that drafts for this one

    @cached_property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, divided into groups that are compiled separately."""
        return decoder_groups(self.config, self.program_specs)

    @cached_property
    def program_specs(self) -> tuple[WeightSpec, ...]:
        """The weights of the checkpoint, and the slots of adapters."""
        return (*self.specs, *_slot_specs(self.specs, self.shapes.adapters, self.dtype))

    @cached_property
    def encoder_groups(self) -> tuple[LayerGroup, ...]:
        """The same of the model's encoder, if it has one."""
        return encoder_groups(self.config, self.specs)

    @property
    @override
    def meshes(self) -> Sequence[DeviceMesh]:
        return (self.mesh, *self.other_meshes)

    @property
    @override
    def all_specs(self) -> tuple[WeightSpec, ...]:
        return self.specs if self.draft is None else (*self.specs, *self.draft.named_specs)

    @property
    @override
    def own_specs(self) -> tuple[WeightSpec, ...]:
        return self.all_specs if self.draft is not None and self.draft.is_of_target else self.specs

    @property
    def num_tokens(self) -> int:
        """The token positions that the pages of all engines hold."""
        return self.shapes.kv_tokens["full"] * len(self.meshes)

    @property
    def number_formats(self) -> Mapping[str, str]:
        """The dtypes of activations and cache, of weights and products if different, and the storage of the layers."""
        formats = self.formats
        storage = layers_quantization(formats.quantization, self.config.layer_storage)
        reported = {"dtype": self.dtype.name, "quantization": storage.value, "kv_dtype": formats.kv_dtype.name}
        others = {"weight_dtype": formats.weight_dtype, "product_dtype": formats.product_dtype}
        return reported | {name: dtype.name for name, dtype in others.items() if dtype != self.dtype}

    @property
    @override
    def memory_bytes(self) -> int:
        return self.total_bytes

    @property
    @override
    def names(self) -> ProgramNames:
        shapes, groups = self.shapes, self.layer_groups
        encoding, attention = encoder_keys(self.encoder_groups, groups, shapes), attention_keys(shapes, groups)
        last = [*attention, *([] if self.draft is None else draft_keys())]

        def names(keys: Sequence[ProgramKey]) -> list[str]:
            return list(dict.fromkeys(map(str, [*encoding, *keys])))

        return ProgramNames(
            names([*program_keys(shapes, groups), *last]),
            names(first_keys(shapes, groups)),
            names([*compile_order(shapes, groups), *last]),
            names(sufficient_keys(shapes, groups)),
        )

    @property
    @override
    def media_package(self) -> str | None:
        if self.config.speech_encoder is not None:
            return "av"
        return None if self.config.image_encoder is None else "PIL"

    @property
    @override
    def log_fields(self) -> Mapping[str, Any]:
        config = self.config
        return {
            "model_type": config.model_type,
            **self.number_formats,
            **({} if self.draft is None else {"draft_model": self.draft.uri}),
            "kv_head_copies": max(attention.kv_copies for attention in config.attentions),
            **asdict(self.shapes),
        }

    @property
    @override
    def shape_fields(self) -> Mapping[str, Any]:
        return self.shapes.facts

    @property
    @override
    def ready_fields(self) -> Mapping[str, Any]:
        shapes = self.shapes
        sizes = {"max_model_len": shapes.max_model_len, "kv_pages": shapes.num_pages, "slots": shapes.num_slots}
        if shapes.windows:
            sizes |= {"kv_tokens": shapes.kv_tokens}
        if shapes.states is not None:
            sizes |= {"states": shapes.states.num_states, "sequences_with_states": sequences_with_states(shapes)}
        return {**sizes, **self.number_formats}

    @override
    def kernel_fault(self) -> str | None:
        page_size = self.shapes.page_size
        fault = find_kernel_fault(self.config, self.formats, self.kernel, self.mesh, page_size)
        if fault is None and (draft := self.draft) is not None:
            fault = find_kernel_fault(draft.config, draft.formats, draft.kernel, self.mesh, page_size)
        return fault

    @override
    def model(self) -> PagedDecoder:
        return make_decoder(self.config, self.formats, self.kernel, self.mesh, self.shapes.adapters)

    @override
    def programs(self, model: PagedDecoder) -> Sequence[Program]:
        from service.engine.steps.programs import engine_programs

        shapes, weights = self.shapes, weight_shapes(self.program_specs, self.mesh)
        if self.draft is None:
            return engine_programs(model, shapes, weights)
        drafting = self.draft.drafting(shapes)
        return [*engine_programs(model, shapes, weights, drafting), *self.draft.programs(shapes, drafting)]

    @override
    def begin_state(self, executables: Mapping[str, Executable]) -> "DeviceState":
        from service.engine.runner import DeviceState

        return DeviceState(self.shapes, self.layer_groups, executables)

    @override
    def start(self, context: StartContext, engines: Sequence[EngineParts]) -> "RunningEngine":
        from service.start.kinds.adapter_reader import AdapterReader
        from service.start.kinds.running_engine import RunnerMaker, RunningEngine

        makers = [
            RunnerMaker(self.shapes, self.layer_groups, self.encoder_groups, engine, self._drafter_maker(engine))
            for engine in engines
        ]
        # On a CPU the operating system shares the cores between the steps of both engines: 0.79 of the speed of a
        # single engine with as many sequences, compared to 0.68 with turns.
        turns = None if self.mesh.is_host else context.common.turns.__getitem__
        if self.config.speech_encoder is not None:
            from service.start.kinds.running_listener import RunningListener

            return RunningListener(context, makers, self.config, self.number_formats, turns)
        vocab_size, formats, adapters = self.config.vocab_size, self.number_formats, self.shapes.adapters
        reader = None
        if adapters is not None:
            weights = without_prefix(engines[0].weights, is_draft=False)
            reader = AdapterReader(context, self.specs, self.layer_groups, adapters, dtype=self.dtype, weights=weights)
        images = self.config.image_encoder
        return RunningEngine(context, makers, vocab_size, formats, turns, image_encoder=images, read_adapter=reader)

    @override
    def run_once(self, weights: Mapping[str, jax.Array], executables: Mapping[str, Executable]) -> None:
        from service.engine.runner import Runner

        own = without_prefix(weights, is_draft=False)
        runner = Runner(self.shapes, self.layer_groups, own, executables, encoder_groups=self.encoder_groups)
        runner.warm()
        if (make_drafter := self._drafter_maker(EngineParts(weights, executables, None))) is not None:
            for step in make_drafter(runner.state).padded_steps():
                step()

    def _drafter_maker(self, parts: EngineParts) -> "Callable[[DeviceState], Drafter] | None":
        """Return what makes the drafter of an engine beside its state; None without a draft model or a head."""
        if self.draft is None:
            return None
        return partial(self.draft.make_drafter, self.shapes, self.config.vocab_size, parts)


def choose_engine_spec(
    settings: Settings,
    located: LocatedCheckpoint,
    devices: Sequence[Device],
    *,
    memory_share: float = 1.0,
    kernel_fault: str | None = None,
) -> EngineSpec:
    """Choose devices, dtype and sizes, and compute the bundle key.

    Sizes depend on the model's share of the memory rather than on free memory, so that a model has the same pages and
    bundle whatever else is loaded. A model that does not fit into its share gets all of the memory. On a device that
    multiplies rows of int8 faster than a checkpoint's 4 bits, these stay only if the rows do not fit.

    Args:
        settings: the operator's settings.
        located: the checkpoint.
        devices: all devices of this host.
        memory_share: the model's share of their memory.
        kernel_fault: what a check has found wrong with the usual attention kernel, which the reference then replaces.

    Raises:
        UnsupportedModel: the family or a feature of this model is not supported.
        SettingsError: the operator requested a longer context than the model supports, int8 with rows that are too
            long, or an unsuitable number of devices.
        DoesNotFit: the devices are too small.
        UnknownDeviceMemory: an accelerator does not report its memory.
    """
    is_open = devices[0].platform != "cpu" and (settings.data_parallel == "auto" or not settings.tensor_parallel)

    def planned(*, keeps_bits: bool) -> EngineSpec:
        def plan(number: int) -> EngineSpec:
            return _plan_engines(
                *(settings, located, devices, number),
                memory_share=memory_share,
                kernel_fault=kernel_fault,
                keeps_bits=keeps_bits,
            )

        return choose_data_parallel(plan, settings.data_parallel, len(devices) if is_open else 1)

    try:
        return planned(keeps_bits=False)
    except DoesNotFit:
        config = read_config(located.uri, located.hub_config, settings.max_model_len)
        if not _has_bits_to_keep(config, settings.quantization, devices[0].platform):
            raise
        spec = planned(keeps_bits=True)
        if spec.kernel.obstacle is not None:  # the reference's scores take gigabytes that no plan knows
            raise
        logger.info("the weights stay in 4 bits, which are slower here: in 8 or more they do not fit")
        return spec


def _plan_engines(
    settings: Settings,
    located: LocatedCheckpoint,
    devices: Sequence[Device],
    num_engines: int,
    *,
    memory_share: float,
    kernel_fault: str | None,
    keeps_bits: bool,
) -> EngineSpec:
    """Plan so many engines with the same weights, on equal parts of the devices; see `choose_engine_spec`.

    Args:
        settings: the operator's settings.
        located: the checkpoint.
        devices: all devices of this host.
        num_engines: how many.
        memory_share: the model's share of their memory.
        kernel_fault: what a check has found wrong with the usual attention kernel.
        keeps_bits: whether a checkpoint's 4 bits stay in any case.
    """
    config = read_config(located.uri, located.hub_config, settings.max_model_len)
    log_unknown_keys(located.uri, located.hub_config)
    parts = split_devices(devices, data_parallel=num_engines, tensor_parallel=settings.tensor_parallel)
    meshes = [choose_mesh(part, tensor_parallel=settings.tensor_parallel, sizes=config.split_sizes) for part in parts]
    mesh = meshes[0]
    config = config.split_over(mesh.num_devices)

    def formats_of(checkpoint: LocatedCheckpoint) -> NumberFormats:
        is_host, is_as_saved = mesh.is_host, checkpoint.is_as_saved
        return choose_formats(
            settings, checkpoint.hub_config, mesh.devices[0], is_host=is_host, may_stay_stored=is_as_saved
        )

    formats = formats_of(located)
    config = with_kept_bits(config, formats.quantization, mesh, in_any_case=keeps_bits)
    config = without_slow_images(config, formats, mesh)
    _check_rows(config, formats.quantization)
    specs = decoder_weight_specs(config, formats.dtype, formats.quantization, formats.weight_dtype)
    kernel = choose_kernel(config, formats, mesh, kernel_fault)
    draft = None
    if located.draft is not None:
        choose = _choice_of_draft(located.draft, specs, formats.dtype, settings.max_model_len)
        draft = choose(located.draft, config, formats_of(located.draft), mesh, kernel_fault=kernel_fault)
    elif settings.speculation in MODEL_MODES:
        mtp = read_mtp(located.hub_config, config)
        if mtp is not None:
            draft = choose_mtp(located.uri, mtp, formats, mesh, target_specs=specs, kernel_fault=kernel_fault)
        elif settings.speculation == "draft":
            raise SettingsError("SPECULATION", NOTHING_DRAFTS)
    used = [device for one in meshes for device in one.devices]
    memory_bytes = usable_memory_bytes(used, settings.device_memory_fraction)
    try:
        shapes = choose_shapes(
            settings, config, formats, mesh, int(memory_bytes * memory_share), kernel=kernel, draft=draft
        )
    except DoesNotFit:
        if memory_share == 1:
            raise
        shapes = choose_shapes(settings, config, formats, mesh, memory_bytes, kernel=kernel, draft=draft)
    _check_adapter_cache(settings, specs, shapes.adapters, formats.dtype)
    size = _model_size(settings, config, formats, mesh, shapes.adapters, kernel=kernel)
    key = _key_of(config, formats, shapes, mesh, kernel, draft)
    total_bytes, others = engine_bytes(size if draft is None else draft.beside(size), shapes), tuple(meshes[1:])
    return EngineSpec(formats.dtype, specs, mesh, key, config, shapes, kernel, formats, total_bytes, others, draft)


def _choice_of_draft(
    located: LocatedCheckpoint, target_specs: Sequence[WeightSpec], target_dtype: np.dtype, max_model_len: int | None
) -> Callable[..., DraftSpec]:
    """Return what plans a checkpoint at DRAFT_MODEL_URI: a head, or a model."""
    if is_eagle3(located.hub_config):
        return partial(choose_head, target_specs=target_specs, target_dtype=target_dtype)
    return partial(choose_draft, max_model_len=max_model_len)


def _key_of(  # noqa: PLR0917 (what a bundle depends on)
    config: DecoderConfig,
    formats: NumberFormats,
    shapes: EngineShapes,
    mesh: DeviceMesh,
    kernel: KernelChoices,
    draft: DraftSpec | None,
) -> BundleKey:
    return bundle_key(
        config,
        formats.dtype,
        shapes,
        mesh,
        formats.quantization,
        kv_dtype=formats.kv_dtype,
        weight_dtype=formats.weight_dtype,
        product_dtype=formats.product_dtype,
        kernel=kernel.name,
        draft=None if draft is None else draft.key_inputs,
    )


def encoder_groups(config: DecoderConfig, specs: Sequence[WeightSpec]) -> tuple[LayerGroup, ...]:
    """Return the layers of a model's encoder in order, divided into groups; empty if it has none."""
    return () if config.media_encoder is None else groups_of_encoder(config.media_encoder, specs)


def choose_shapes(
    settings: Settings,
    config: DecoderConfig,
    formats: NumberFormats,
    mesh: DeviceMesh,
    memory_bytes: int,
    *,
    kernel: KernelChoices,
    draft: DraftSpec | None = None,
) -> EngineShapes:
    """Choose the sizes of an engine.

    Args:
        settings: the operator's settings.
        config: the model's configuration, split over the devices.
        formats: the dtypes of activations, weights and cache.
        mesh: the devices.
        memory_bytes: usable memory on each device.
        kernel: the attention kernel, which determines the size of the cache.
        draft: the model that drafts for this one; None without one.

    Raises:
        SettingsError: the operator requested a longer context than the model supports.
        DoesNotFit: the devices are too small.
    """
    adapters = _adapter_shapes(settings, config)
    size = _model_size(settings, config, formats, mesh, adapters, kernel=kernel)
    shapes = fit_engine(
        size if draft is None else draft.beside(size),
        memory_bytes=memory_bytes,
        max_num_seqs=settings.max_num_seqs,
        page_size=settings.page_size,
        max_prefill_tokens=settings.max_prefill_tokens or chunk_tokens(mesh.devices[0].device_kind),
        max_model_len=settings.max_model_len,
        num_drafts=_num_drafts(settings.speculation, config),
    )
    return shapes if draft is None else draft.with_taps(shapes)


def _num_drafts(mode: SpeculationMode, config: DecoderConfig) -> int:
    """Return how many tokens may be drafted; none of speech."""
    return 0 if mode == "off" or config.speech_encoder is not None else MAX_DRAFTS


def _adapter_shapes(settings: Settings, config: DecoderConfig) -> AdapterShapes | None:
    """Return the slots of adapters; a model with an encoder has none."""
    if settings.max_loras == 0 or config.speech_encoder is not None:
        return None
    return AdapterShapes(settings.max_loras, settings.max_lora_rank)


def _check_adapter_cache(
    settings: Settings, specs: Sequence[WeightSpec], adapters: AdapterShapes | None, dtype: np.dtype
) -> None:
    needed = slot_bytes(_slot_specs(specs, adapters, dtype))
    if needed > settings.lora_cache_bytes:
        message = (
            f"is {settings.lora_cache_bytes:,}, less than one adapter of MAX_LORA_RANK {settings.max_lora_rank}, which "
            f"takes {needed:,} bytes. Set it higher, or the rank lower."
        )
        raise SettingsError("LORA_CACHE_BYTES", message)


def _slot_specs(specs: Sequence[WeightSpec], adapters: AdapterShapes | None, dtype: np.dtype) -> tuple[WeightSpec, ...]:
    return () if adapters is None else adapter_specs(specs, adapters, dtype)


def _has_bits_to_keep(config: DecoderConfig, quantization: str, platform: str) -> bool:
    """Return whether a checkpoint's 4 bits could stay on a platform, and do not by themselves."""
    storage = config.layer_storage
    if storage is None or quantization != Quantization.NONE or platform == "gpu":
        return False
    return storage.obstacle_to_four_bits is None


def with_kept_bits(
    config: DecoderConfig, quantization: Quantization, mesh: DeviceMesh, *, in_any_case: bool = False
) -> DecoderConfig:
    """Return the description in which the layers' weights stay in 4 bits if they can, and may.

    Args:
        config: the description.
        quantization: as requested.
        mesh: the devices.
        in_any_case: whether they stay on devices that multiply rows of int8 faster, too, if nothing is requested.

    Raises:
        SettingsError: QUANTIZATION is int4, and the checkpoint's weights are quantized in another way.
    """
    storage = config.layer_storage
    obstacle = None if storage is None else storage.obstacle_to_four_bits
    if quantization is Quantization.INT4 and obstacle is not None:
        message = (
            "is int4, which keeps the 4 bits of a checkpoint of AWQ, GPTQ, W4A16, NVFP4 or MXFP4 and makes them of one "
            f"that is not quantized, but this one {obstacle}. Set it to none or int8."
        )
        raise SettingsError("QUANTIZATION", message)
    kept = kept_storage(storage, quantization, mesh.platform, mesh.num_devices, in_any_case=in_any_case)
    return replace(config, layer_storage=kept)


def without_slow_images(config: DecoderConfig, formats: NumberFormats, mesh: DeviceMesh) -> DecoderConfig:
    """Return the description of the text model, if only its images keep the device's attention kernel from it.

    A warning says so, and requests with images are refused. Gemma 3 is served with its images by the slow reference.
    """
    if not (isinstance(config.image_encoder, PatchEncoder) and config.looks_ahead):
        return config
    device, shapes = mesh.devices[0], head_shapes(config, formats, mesh)
    obstacle = choose_kernels(device, shapes).obstacle
    if obstacle is None or choose_kernels(device, [replace(one, looks_ahead=False) for one in shapes]).obstacle:
        return config
    facts = {"device": device.device_kind, "model_type": config.model_type, "reason": obstacle}
    logger.warning(
        "images are not served here: the device's attention kernel serves the model's text alone", extra=facts
    )
    return replace(config, image_encoder=None)


def _check_rows(config: DecoderConfig, quantization: Quantization) -> None:
    longest = config.longest_row
    is_int8 = layers_quantization(quantization, config.layer_storage) is Quantization.INT8
    if is_int8 and longest > MAX_INT8_ROW:
        message = (
            f"is int8, whose sums overflow beyond {MAX_INT8_ROW:,} products, but a row of this model has {longest:,}. "
            "Set it to none."
        )
        raise SettingsError("QUANTIZATION", message)


def _model_size(
    settings: Settings,
    config: DecoderConfig,
    formats: NumberFormats,
    mesh: DeviceMesh,
    adapters: AdapterShapes | None,
    *,
    kernel: KernelChoices,
) -> ModelSize:
    dtype, quantization, kv_dtype, weight_dtype, _ = formats
    storage = layers_quantization(quantization, config.layer_storage)
    products_dtype = weight_dtype.name if storage is Quantization.NONE else storage.value
    specs = decoder_weight_specs(config, dtype, quantization, weight_dtype)
    media = row_shapes(settings, config, specs)
    by_window = config.kv_bytes_by_window(lambda attention: position_bytes(attention, kernel, mesh, kv_dtype))
    return ModelSize(
        context_len=config.context_len,
        vocab_size=config.vocab_size,
        weights_bytes=weights_bytes((*specs, *_slot_specs(specs, adapters, dtype)), mesh),
        kv_bytes_per_token=by_window.pop(None, 0),
        window_bytes_per_token=tuple(
            sorted((window, size) for window, size in by_window.items() if window is not None)
        ),
        state_bytes=config.state_bytes(dtype.itemsize, mesh.num_devices),
        is_host=mesh.is_host,
        skips_padding=mesh.is_host and dtype == np.float32 and skips_padding(native_code(), products_dtype),
        has_whole_steps=mesh.prefers_whole_steps,
        max_table_bytes=kernel.max_table_bytes,
        page_sizes=kernel.page_sizes,
        max_positions=kernel.max_positions,
        memory=_memory_shapes(config, specs),
        media=media,
        media_bytes=0 if media is None else _rows_bytes(media, config.hidden_size, dtype),
        adapters=adapters,
    )


def _memory_shapes(config: DecoderConfig, specs: Sequence[WeightSpec]) -> MemoryShapes | None:
    encoder = config.speech_encoder
    if encoder is None:
        return None
    num_parts = len(encoder_groups(config, specs))
    return MemoryShapes(encoder.num_positions, num_parts, (encoder.num_frames, encoder.num_mels))


def row_shapes(settings: Settings, config: DecoderConfig, specs: Sequence[WeightSpec]) -> RowShapes | None:
    """Return the sizes of rows of media: places for as many as the longest prompt has."""
    num_parts, context_len = len(encoder_groups(config, specs)), settings.max_model_len or config.context_len
    match config.image_encoder:
        case ImageEncoder() as encoder:
            rows, size = encoder.num_rows, encoder.image_size
            # An image of one picture needs fewer places than one of tiles.
            kept = min(context_len, MAX_KEPT_ROWS) if encoder.sees_itself else context_len
            places = max(kept // rows, 1)
            return RowShapes(places, rows, (rows,), num_parts, (size, size, 3), is_whole=encoder.sees_itself)
        case PatchEncoder() as encoder:
            largest = min(settings.max_image_tokens or encoder.usual_rows or MAX_IMAGE_ROWS, context_len)
            if encoder.has_position_tables:
                largest = min(largest, encoder.num_positions // encoder.merge_size)
            sizes, kept = (*(size for size in PADDED_ROWS if size < largest), largest), min(context_len, MAX_KEPT_ROWS)
            # Rows that see each other lie in one place.
            places = (max(kept // largest, 1), largest) if encoder.sees_itself else (kept // PLACE_ROWS + 1, PLACE_ROWS)
            return RowShapes(
                *places,
                sizes,
                num_parts,
                (encoder.merge_size**2, 3 * encoder.patch_size**2),
                num_added=len(encoder.taps),
                has_grid=encoder.has_grid,
                is_whole=encoder.sees_itself,
            )
        case None:
            return None


def _rows_bytes(media: RowShapes, hidden_size: int, dtype: np.dtype) -> int:
    return media.num_places * media.place_rows * (1 + media.num_added) * hidden_size * dtype.itemsize
