"""The `quantization_config` of a `config.json`: the stored formats that are served; all others are refused by name."""

from collections.abc import Mapping
from typing import Any

from service.models.stored.compressed_tensors import read_compressed_tensors
from service.models.stored.fields import KEY, refusal
from service.models.stored.layers import LayerStorage
from service.models.stored.methods import (
    read_awq,
    read_fbgemm_fp8,
    read_fp8,
    read_gptq,
    read_modelopt,
    read_mxfp4,
)

READERS = {
    "awq": read_awq,
    "fbgemm_fp8": read_fbgemm_fp8,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "modelopt": read_modelopt,
    **dict.fromkeys(("modelopt_fp4", "modelopt_fp8", "modelopt_mixed"), read_modelopt),
    "mxfp4": read_mxfp4,
}
# Files of the programs that quantize, which stand for a `quantization_config` where `config.json` has none, and the
# method of those that do not name it. Source: vLLM `quantization/*.py` (get_config_filenames)
QUANTIZATION_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
# What the methods are called by those who use them, where the name in the file says less.
CALLED = {
    "bitsandbytes": "bitsandbytes",
    "eetq": "EETQ (int8)",
    "hqq": "HQQ",
    "torchao": "torchao",
    "gguf": "GGUF",
    "mlx": "MLX",
    **dict.fromkeys(("auto-round", "intel/auto-round", "inc"), "AutoRound"),
    "exl2": "ExLlamaV2",
    "exl3": "ExLlamaV3",
    "fp_quant": "FP-Quant",
    "sinq": "SINQ",
    "aqlm": "AQLM",
    "quanto": "Quanto",
    "quark": "AMD Quark",
    "bitnet": "BitNet",
    "higgs": "HIGGS",
    "vptq": "VPTQ",
    "spqr": "SpQR",
}


def quantization_of(values: Mapping[str, Any]) -> Any:
    """Return the `quantization_config` of a file; None if it has none.

    It may lie in the part of a text model, or have its first name, which only compressed-tensors used.
    """
    text, former = values.get("text_config"), values.get("compression_config")
    found = values.get(KEY)
    if found is None and isinstance(text, Mapping):
        found = text.get(KEY)
    if found is None and isinstance(former, Mapping):
        return {"quant_method": "compressed-tensors", **former}
    return former if found is None else found


def read_layer_storage(uri: str, values: Mapping[str, Any]) -> LayerStorage | None:
    """Return how a checkpoint stores the weights of its linear layers; None if they are not quantized.

    Args:
        uri: the checkpoint's address, for messages.
        values: those of `config.json`.

    Raises:
        UnsupportedModel: the weights are quantized in a way that is not served; names the field.
    """
    config = quantization_of(values)
    if config is None or config == {}:
        return None
    if not isinstance(config, Mapping):
        raise refusal(uri, f"{KEY} = {config!r} is not served")
    method = config.get("quant_method")
    if config.get("format") == "dense":
        return None
    if method is None:
        # Source: transformers `quantizers/auto.py` (from_dict); mlx_lm `utils.py` (save_config)
        is_bitsandbytes = config.get("load_in_4bit") or config.get("load_in_8bit")
        method = "bitsandbytes" if is_bitsandbytes else "mlx" if {"group_size", "bits"} <= config.keys() else None
    if not isinstance(method, str):
        raise refusal(uri, f"{KEY}.quant_method = {method!r} is not served")
    if method == "compressed-tensors":
        return read_compressed_tensors(uri, config, is_tied=bool(values.get("tie_word_embeddings")))
    if method in READERS:
        return READERS[method](uri, config)
    if method in CALLED:
        detail = _detail(config)
        raise refusal(
            uri,
            f"the weights are quantized by {CALLED[method]} ({_named(method, config)}{detail}), which is not "
            f"served. Serve the model that was quantized, or have {_dequantizer(method)}",
        )
    raise refusal(uri, f"{KEY}.quant_method = {method!r} is not served")


def _dequantizer(method: str) -> str:
    return "mlx_lm.convert --dequantize write it" if method == "mlx" else "transformers dequantize() and save it"


def _named(method: str, config: Mapping[str, Any]) -> str:
    """Return what names the method in the file."""
    stated = config.get("quant_method")
    return f"{KEY}.quant_method = {method!r}" if stated else f"{KEY} with {', '.join(sorted(config)[:3])}"


def _detail(config: Mapping[str, Any]) -> str:
    """Return the kind of bitsandbytes, which its method does not name."""
    if config.get("load_in_4bit"):
        return f", {config.get('bnb_4bit_quant_type', 'fp4')}"
    return ", int8" if config.get("load_in_8bit") else ""
