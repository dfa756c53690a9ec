"""The file of a program that quantizes, beside a `config.json` that says nothing of it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from service.checkpoint.file_set import FileSet
from service.checkpoint.layout import SnapshotLayout, named
from service.checkpoint.model_config import parse_json_object
from service.checkpoint.stored_names import open_ranges
from service.errors import CheckpointError
from service.models.quantization_config import QUANTIZATION_FILES, quantization_of
from service.models.stored.fields import KEY
from service.storage.cache.cache import CheckpointCache
from service.storage.objects import ObjectInfo
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget, TransferLimits
from service.storage.source import Source
from service.weights.headers import read_headers

logger = logging.getLogger(__name__)

# How tensors that hold quantized weights end.
_QUANTIZED = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv")


def with_quantization_file(
    source: Source,
    objects: Sequence[ObjectInfo],
    layout: SnapshotLayout,
    values: Mapping[str, Any],
    cache: CheckpointCache | None,
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
    names = layout.index or _stored(FileSet(source, layout.weights), cache)
    if names and not any(name.endswith(_QUANTIZED) for name in names):
        logger.info("no weight is quantized, so this file is not read", extra={"uri": source.uri, "file": info.name})
        return values, ()
    config = parse_json_object(source.uri, info.name, source.read(info))
    logger.info("the weights are quantized as this file says", extra={"uri": source.uri, "file": info.name})
    return {**values, KEY: {"quant_method": QUANTIZATION_FILES[info.name], **config}}, (info,)


def _stored(files: FileSet, cache: CheckpointCache | None) -> list[str]:
    """Return the names of the tensors of files, from their headers; none if these cannot be read."""
    if any(info.is_gzipped for info in files.objects):
        return []
    try:
        with open_ranges(files, cache) as ranges:
            opened = [OpenFile(ranges, replace(info, crc32c="")) for info in files.objects]
            return [name for header in read_headers(opened, RetryBudget(TransferLimits())) for name in header.entries]
    except CheckpointError as error:
        logger.info("the names of tensors cannot be read", extra={"uri": files.source.uri, "reason": str(error)})
        return []
