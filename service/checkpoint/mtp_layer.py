"""Whether a checkpoint brings a layer that predicts further tokens of its model, as it is served: its files decide."""

import logging
from collections.abc import Mapping
from typing import Any

from service.checkpoint.file_set import FileSet
from service.checkpoint.layout import SnapshotLayout
from service.checkpoint.stored_names import names_by_file
from service.errors import CheckpointError
from service.models.mtp import FAMILIES, HAS_MTP, PREFIX, mtp_of, mtp_weight_specs
from service.models.quantization import Quantization
from service.models.registry import read_config
from service.models.weight_spec import FLOAT32
from service.storage.cache.cache import CheckpointCache
from service.weights.stacked_experts import single_names

logger = logging.getLogger(__name__)


def with_mtp_layer(
    files: FileSet, layout: SnapshotLayout, values: Mapping[str, Any], cache: CheckpointCache | None
) -> Mapping[str, Any]:
    """Return a configuration that says so if the files have exactly the tensors of such a layer.

    It is unchanged otherwise, and if the files cannot be read, which their load explains.

    Args:
        files: all files of the checkpoint.
        layout: the files of weights.
        values: the content of `config.json`.
        cache: where files of a bucket may be.
    """
    if values.get("model_type") not in FAMILIES or any(info.is_gzipped for info in layout.weights):
        return values
    uri = files.source.uri
    try:
        stored = names_by_file(files, layout, cache).values()
        names = [name for own in stored for name in own if name.startswith(PREFIX)]
        if not names:
            return values
        specs = mtp_weight_specs(mtp_of(read_config(uri, values)), FLOAT32, Quantization.NONE, None)
    except CheckpointError as error:
        logger.info("the files are not asked for further layers", extra={"uri": uri, "reason": str(error)})
        return values
    wanted = {source.name for spec in specs for source in spec.sources}
    return {**values, HAS_MTP: True} if set(single_names(names, wanted)) == wanted else values
