"""The names of the tensors of a head that drafts: the files decide whether it has embeddings of its own."""

from collections.abc import Mapping
from typing import Any

from service.checkpoint.file_set import FileSet
from service.checkpoint.layout import SnapshotLayout
from service.checkpoint.stored_names import headers_of, indexed_names, open_ranges
from service.models.eagle3 import TENSORS
from service.storage.cache.cache import CheckpointCache
from service.storage.retry import RetryBudget, TransferLimits


def with_tensor_names(
    files: FileSet, layout: SnapshotLayout, values: Mapping[str, Any], cache: CheckpointCache | None
) -> Mapping[str, Any]:
    """Return the configuration of a head with the names of its tensors.

    Args:
        files: all files of the head.
        layout: the files of weights.
        values: the content of `config.json`.
        cache: where files of a bucket may be.

    Raises:
        CheckpointError: a file cannot be read, or is none of weights.
    """
    tensors_of = indexed_names(layout)
    if not tensors_of:
        with open_ranges(files, cache) as ranges:
            headers = headers_of(layout.weights, ranges, RetryBudget(TransferLimits()))
        tensors_of = {file: list(header.entries) for file, header in headers.items()}
    return {**values, TENSORS: tuple(sorted(name for names in tensors_of.values() for name in names))}
