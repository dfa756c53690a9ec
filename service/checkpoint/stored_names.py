"""The names of a snapshot's tensors, known before any weight is read: from its index, else from the files' headers."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from service.checkpoint.file_set import FileSet
from service.checkpoint.layout import SnapshotLayout
from service.storage.cache.cache import CachedSource, CheckpointCache
from service.storage.objects import ObjectInfo, RangeSource
from service.storage.open_files import FolderRanges, OpenFile
from service.storage.retry import RetryBudget, TransferLimits
from service.weights.headers import read_headers
from service.weights.safetensors import Header


@contextmanager
def open_ranges(files: FileSet, cache: CheckpointCache | None) -> Iterator[RangeSource]:
    """Open the files of a checkpoint where they are."""
    source = files.source
    kept = cache.find(source, files.objects) if cache is not None and isinstance(source, CachedSource) else None
    try:
        with source.open_ranges() if kept is None else FolderRanges(source.uri, kept.path) as ranges:
            yield ranges
    finally:
        if kept is not None:
            kept.release()


def indexed_names(layout: SnapshotLayout) -> dict[str, list[str]]:
    """Return the names of each file's tensors by the index; empty without one."""
    tensors_of: dict[str, list[str]] = {}
    for name, file in (layout.index or {}).items():
        tensors_of.setdefault(file, []).append(name)
    return tensors_of


def names_by_file(files: FileSet, layout: SnapshotLayout, cache: CheckpointCache | None) -> dict[str, list[str]]:
    """Return the names of each file's tensors, by the index or, without one, by the files' headers.

    Raises:
        CheckpointError: a file cannot be read, or is none of weights.
    """
    if tensors_of := indexed_names(layout):
        return tensors_of
    with open_ranges(files, cache) as ranges:
        headers = headers_of(layout.weights, ranges, RetryBudget(TransferLimits()))
    return {file: list(header.entries) for file, header in headers.items()}


def headers_of(files: Iterable[ObjectInfo], ranges: RangeSource, budget: RetryBudget) -> dict[str, Header]:
    """Read the headers of files of weights, by their names.

    Raises:
        CheckpointError: a file cannot be read, or is none of weights.
    """
    opened = [OpenFile(ranges, replace(info, crc32c="")) for info in files]
    return {header.file.info.name: header for header in read_headers(opened, budget)}
