"""Whether a model reads images: the files decide, and not `config.json`.

Who fine-tunes a model's text often saves it without what reads images, beside the configuration of the whole model.
It is served as a text model then. One that has a part of what reads images is refused by the name of what is missing.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.checkpoint.file_set import FileSet
from service.checkpoint.head import EMBED, UNEMBED
from service.checkpoint.layout import SnapshotLayout
from service.checkpoint.stored_names import names_by_file
from service.errors import CheckpointError
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import OWN_HEAD, READS_IMAGES, read_config
from service.storage.cache.cache import CheckpointCache
from service.weights.names import resolve
from service.weights.stacked_experts import single_names

logger = logging.getLogger(__name__)


def with_image_encoder(
    files: FileSet, layout: SnapshotLayout, values: Mapping[str, Any], cache: CheckpointCache | None
) -> Mapping[str, Any]:
    """Return a configuration that says so if the files have nothing that reads images.

    It is unchanged if the model reads none, or if the files cannot be read, which their load explains.

    Args:
        files: all files of the checkpoint.
        layout: the files of weights.
        values: the content of `config.json`.
        cache: where files of a bucket may be.
    """
    if values.get("vision_config") is None or any(info.is_gzipped for info in layout.weights):
        return values
    uri = files.source.uri
    try:
        config = read_config(uri, {**values, OWN_HEAD: True})
        if config.image_encoder is None:
            return values
        specs = decoder_weight_specs(config)
        of_text = {spec.name for spec in decoder_weight_specs(replace(config, image_encoder=None))}
        of_images = {source.name for spec in specs if spec.name not in of_text for source in spec.sources}
        heads = {spec.sources[0].name for spec in specs if spec.name in (EMBED, UNEMBED)}
        names = [source.name for spec in specs for source in spec.sources]
        stored = names_by_file(files, layout, cache)
        tensors_of = {file: single_names(own, names) for file, own in stored.items()}
        tensors = resolve(uri, specs, tensors_of, optional=of_images | heads, zeros=frozenset).tensors
    except CheckpointError as error:
        logger.info("whether images are read is chosen by config.json", extra={"uri": uri, "reason": str(error)})
        return values
    if not of_images.isdisjoint(tensors):
        return values
    logger.warning("config.json describes a model that reads images, but the files have its text alone: it is served")
    return {**values, READS_IMAGES: False}
