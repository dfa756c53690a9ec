"""The attention kernel of a decoder on its devices, and the model that is traced with it."""

import logging
from typing import Any

import jax
import numpy as np

from service.device.mesh import DeviceMesh
from service.device.native.library import native_code
from service.kernels.attention import Scoring
from service.kernels.choice import HeadShape, KernelChoices, choose_kernels
from service.kernels.limits import vector_bytes
from service.models.adapter_arrays import AdapterShapes
from service.models.description import Attention, DecoderConfig
from service.models.interface import PagedDecoder
from service.start.dtype import NumberFormats

logger = logging.getLogger(__name__)

CHECKED_CHUNK = 32  # tokens of a prompt, at least, with which a kernel is checked
CHECKED_CHUNKS = 8  # enough that a GPU's kernel splits the positions that a decode step reads


def make_decoder(
    config: DecoderConfig,
    formats: NumberFormats,
    kernel: KernelChoices,
    mesh: DeviceMesh,
    adapters: AdapterShapes | None = None,
) -> PagedDecoder:
    """Return the model to trace."""
    from service.kernels.products.linear import choose_products
    from service.kernels.products.quantized import choose_fp8_products
    from service.models.decoder import Decoder  # imports Haliax

    return Decoder(
        config,
        formats.dtype,
        kernel.kernel(),
        choose_products(mesh, formats.dtype, formats.product_dtype, formats.weight_dtype),
        formats.quantization,
        mesh,
        formats.kv_dtype,
        choose_fp8_products(mesh),
        formats.weight_dtype,
        adapters,
    )


def find_kernel_fault(
    config: DecoderConfig, formats: NumberFormats, kernel: KernelChoices, mesh: DeviceMesh, page_size: int
) -> str | None:
    """Run the attention kernel on a small case of each kind of heads; return what is wrong with it, None if nothing is.

    The reference, with which it is compared, has no fault.
    """
    if kernel.is_reference:
        return None
    from service.kernels.self_check import Case, find_fault

    kinds = {
        (
            *(a.num_kv_heads, a.group_size, a.head_dim, Scoring(a.scale, a.window, a.soft_cap), a.has_sinks),
            config.looks_ahead and a.looks_ahead,
        )
        for a in config.attentions
    }
    cases = [
        Case(
            formats.dtype,
            num_kv_heads // mesh.num_devices,
            group,
            head_dim,
            formats.kv_dtype,
            page_size,
            scoring,
            has_sinks,
            looks_ahead,
            chunk=max(CHECKED_CHUNK, page_size),
            num_chunks=CHECKED_CHUNKS,
        )
        for num_kv_heads, group, head_dim, scoring, has_sinks, looks_ahead in kinds
    ]
    with jax.default_device(mesh.devices[0]):  # pyright: ignore[reportArgumentType]
        faults = (find_fault(kernel.kernel(), case) for case in cases)
        return next((f"{kernel.name} {fault}" for fault in faults if fault is not None), None)


def position_bytes(attention: Attention, kernel: KernelChoices, mesh: DeviceMesh, kv_dtype: np.dtype) -> int:
    """Return the bytes of the keys of one position of a layer, on one device."""
    choice = kernel.of(attention.num_kv_heads // mesh.num_devices, attention.head_dim)
    return choice.cached_kv_heads * vector_bytes(choice.cached_head_dim, kv_dtype)


def choose_kernel(config: DecoderConfig, formats: NumberFormats, mesh: DeviceMesh, fault: str | None) -> KernelChoices:
    """Choose the attention kernels and log them; falling back to the slow one is a warning."""
    device = mesh.devices[0]
    choices = choose_kernels(device, head_shapes(config, formats, mesh), fault)
    if mesh.num_devices > 1 and choices.obstacle is not None and not choices.is_reference:
        # Their caches are split over devices along different axes.
        choices = choose_kernels(device, head_shapes(config, formats, mesh), choices.obstacle)
    fields: dict[str, Any] = {"kernel": choices.name, "device": device.device_kind}
    if mesh.is_host:
        fields["native_code"] = native_code().value
    if choices.obstacle is not None:
        message = "the device's attention kernel cannot serve this model; using the slow reference kernel"
        logger.warning(message, extra={**fields, "reason": choices.obstacle})
        return choices
    for heads, choice in choices.of_heads:
        if choice.cached_head_dim != heads.head_dim:
            fields |= {"head_dim": heads.head_dim, "cached_head_dim": choice.cached_head_dim}
        if choice.cached_kv_heads != heads.num_kv_heads:
            fields |= {"kv_heads": heads.num_kv_heads, "cached_kv_heads": choice.cached_kv_heads}
    logger.info("attention kernel", extra=fields)
    return choices


def head_shapes(config: DecoderConfig, formats: NumberFormats, mesh: DeviceMesh) -> list[HeadShape]:
    """Return the shape of one device's share of the heads, of each kind of heads that layers have."""
    return [
        HeadShape(
            num_kv_heads // mesh.num_devices,
            head_dim,
            formats.dtype,
            formats.kv_dtype,
            has_sinks=any(attention.has_sinks for attention in config.attentions),
            has_memory=config.speech_encoder is not None,
            looks_ahead=config.looks_ahead
            and any(
                attention.looks_ahead
                for attention in config.attentions
                if (attention.num_kv_heads, attention.head_dim) == (num_kv_heads, head_dim)
            ),
        )
        for num_kv_heads, head_dim in config.head_sizes
    ]
