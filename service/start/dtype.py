"""Selection of the dtypes of activations, weights and KV cache; imports no jax."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from service.device.chips import cuda_capability
from service.device.memory import Device
from service.device.native.library import native_code
from service.errors import SettingsError
from service.kernels.limits import ADA, LARGEST_CACHED
from service.models.quantization import Quantization
from service.settings import Settings

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
KV_DTYPES = {
    "bfloat16": BFLOAT16,
    "int8": np.dtype(np.int8),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
}


class NumberFormats(NamedTuple):
    """The dtypes of an engine."""

    dtype: np.dtype  # of activations, norms and biases
    quantization: Quantization  # of weights that are not quantized in the checkpoint
    kv_dtype: np.dtype  # of cached keys and values
    weight_dtype: np.dtype  # of the weights of products that are not quantized
    product_dtype: np.dtype  # to which activations are rounded where they are multiplied by such a weight


class HostDtypes(NamedTuple):
    """The dtypes of a decoder on one CPU."""

    activations: np.dtype
    weights: np.dtype  # of products that are not quantized
    products: np.dtype  # to which activations are rounded for them


def choose_formats(
    settings: Settings,
    hub_config: Mapping[str, Any],
    device: Device,
    *,
    is_host: bool = False,
    may_stay_stored: bool = False,
) -> NumberFormats:
    """Return the dtypes that the settings request.

    Args:
        settings: the operator's settings.
        hub_config: the model's `config.json`, which names the dtype it was saved in.
        device: on which it runs.
        is_host: whether it runs on one CPU.
        may_stay_stored: whether its files are in the dtype that `hub_config` names.

    Raises:
        SettingsError: the device's attention kernel does not support KV_DTYPE.
    """
    dtype = choose_dtype(settings.dtype, hub_config, device.platform)
    found = HostDtypes(dtype, dtype, dtype)
    if is_host:
        found = choose_host_dtypes(settings.dtype, hub_config, may_stay_stored=may_stay_stored)
    kv_dtype = choose_kv_dtype(settings.kv_dtype, found.products, device)
    return NumberFormats(
        found.activations, Quantization(settings.quantization), kv_dtype, found.weights, found.products
    )


def choose_dtype(requested: str, hub_config: Mapping[str, Any], platform: str) -> np.dtype:
    """Return the dtype of activations and weights; `choose_host_dtypes` may choose others for those of a decoder.

    Args:
        requested: DTYPE; `auto` is float32 on a CPU, where most narrower types are emulated, and otherwise as saved.
        hub_config: the model's `config.json`, which names the dtype it was saved in.
        platform: jax's name for the platform, such as `cpu`.
    """
    if requested != "auto":
        return np.dtype(requested)
    saved = saved_dtype(hub_config) or "bfloat16"
    return np.dtype("float32" if platform == "cpu" else saved)


def saved_dtype(hub_config: Mapping[str, Any]) -> str | None:
    """Return the name of the dtype that a `config.json`, or its part of a text model, says it was saved in.

    Source: transformers `configuration_utils.py`: `dtype`, formerly `torch_dtype`, formerly with `torch.` before it
    """
    text = hub_config.get("text_config")
    for values in (hub_config, text if isinstance(text, Mapping) else {}):
        saved = values.get("dtype") or values.get("torch_dtype")
        if isinstance(saved, str) and saved != "auto":
            return saved.removeprefix("torch.")
    return None


def choose_host_dtypes(requested: str, hub_config: Mapping[str, Any], *, may_stay_stored: bool) -> HostDtypes:
    """Return the dtypes of a decoder on one CPU.

    `auto` of a checkpoint in bfloat16 is `bfloat16` where a processor multiplies it: activations are float32 between
    products and rounded for them. On other processors the C++ products then widen the weights in registers: the results
    equal those of float32, in half the memory.

    Args:
        requested: DTYPE.
        hub_config: the model's `config.json`, which names the dtype it was saved in.
        may_stay_stored: whether its files are in that dtype.
    """
    dtype = choose_dtype(requested, hub_config, "cpu")
    stays_stored = requested == "auto" and saved_dtype(hub_config) == BFLOAT16.name and may_stay_stored
    if (dtype == BFLOAT16 or stays_stored) and native_code().rounds_tokens:
        return HostDtypes(FLOAT32, BFLOAT16, BFLOAT16)
    if stays_stored and native_code().has_products:
        return HostDtypes(dtype, BFLOAT16, dtype)
    return HostDtypes(dtype, dtype, dtype)


def choose_kv_dtype(requested: str, dtype: np.dtype, device: Device) -> np.dtype:
    """Return the dtype of cached keys and values.

    Args:
        requested: KV_DTYPE; `auto` is the dtype of what products multiply.
        dtype: the dtype of what products multiply: that of activations, unless they are rounded for it.
        device: the device whose attention kernel reads the cache.

    Raises:
        SettingsError: the kernel does not support the dtype.
    """
    chosen = KV_DTYPES.get(requested, dtype)
    if chosen == dtype:
        return chosen
    if device.platform == "tpu" and chosen.name not in LARGEST_CACHED:
        reason = (
            f"is {requested}, but attention on a TPU supports only 8 bits or DTYPE, here {dtype.name}. Set it to auto."
        )
        raise SettingsError("KV_DTYPE", reason)
    if requested == "fp8" and device.platform == "gpu" and cuda_capability(device) < ADA:
        raise SettingsError(
            "KV_DTYPE", f"is fp8, which GPUs support since Ada, but not {device.device_kind}. Set it to int8."
        )
    return chosen
