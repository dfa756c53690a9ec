"""The file of a program that quantizes, beside a `config.json` that says nothing of it."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from service.checkpoint.layout import INDEX, named
from service.checkpoint.model_config import parse_json_object
from service.models.quantization_config import QUANTIZATION_FILES, quantization_of
from service.models.stored.fields import KEY
from service.storage.objects import ObjectInfo
from service.storage.source import Source

logger = logging.getLogger(__name__)

# How tensors that hold quantized weights end.
_QUANTIZED = (".qweight", ".weight_scale", ".weight_scale_inv")


def with_quantization_file(
    source: Source, objects: Sequence[ObjectInfo], values: Mapping[str, Any]
) -> tuple[Mapping[str, Any], tuple[ObjectInfo, ...]]:
    """Return the values of a `config.json` with the quantization that a file beside it describes, and that file.

    A `quantization_config` in `config.json` decides; then no other file is read.

    Raises:
        MalformedCheckpoint: the file is not a JSON object.
    """
    found = named(objects, QUANTIZATION_FILES)
    if not found or quantization_of(values) is not None:
        return values, ()
    info = found[0]
    index = named(objects, [INDEX])
    if index:
        weight_map = parse_json_object(source.uri, INDEX, source.read(index[0])).get("weight_map")
        if isinstance(weight_map, dict) and not any(str(name).endswith(_QUANTIZED) for name in weight_map):
            logger.info(
                "no weight is quantized, so this file is not read", extra={"uri": source.uri, "file": info.name}
            )
            return values, ()
    config = parse_json_object(source.uri, info.name, source.read(info))
    logger.info("the weights are quantized as this file says", extra={"uri": source.uri, "file": info.name})
    return {**values, KEY: {"quant_method": QUANTIZATION_FILES[info.name], **config}}, (info,)
