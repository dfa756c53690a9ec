"""The `quantization_config` of a `config.json`: the stored formats that are served; all others are refused by name."""

from collections.abc import Mapping
from typing import Any

from service.models.stored.compressed_tensors import read_compressed_tensors
from service.models.stored.fields import KEY, check_fields, refusal
from service.models.stored.layers import LayerStorage
from service.models.stored.methods import read_awq, read_block_fp8, read_gptq, read_mxfp4

METHODS = ("compressed-tensors", "fp8", "awq", "gptq", "mxfp4")


def read_layer_storage(uri: str, values: Mapping[str, Any]) -> LayerStorage | None:
    """Return how a checkpoint stores the weights of its linear layers; None if they are not quantized.

    Args:
        uri: the checkpoint's address, for messages.
        values: those of `config.json`.

    Raises:
        UnsupportedModel: the weights are quantized in a way that is not served; names the field.
    """
    if values.get("compression_config") is not None:
        raise refusal(uri, "compression_config is not served")
    config = values.get(KEY)
    if config is None:
        return None
    check_fields(uri, KEY, config, {"quant_method": METHODS})
    match config["quant_method"]:
        case "fp8":
            return read_block_fp8(uri, config)
        case "awq":
            return read_awq(uri, config)
        case "gptq":
            return read_gptq(uri, config)
        case "mxfp4":
            return read_mxfp4(uri, config)
        case _:
            return read_compressed_tensors(uri, config, is_tied=bool(values.get("tie_word_embeddings")))
