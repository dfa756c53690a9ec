"""Objects of a bucket to files of a folder: in parallel slices, each file visible only when it is whole and right."""

from collections.abc import Callable, Sequence
from pathlib import Path

from service.storage.fetch import ByteRanges, ObjectFetch, fetch_all
from service.storage.objects import ObjectInfo
from service.storage.part_file import PartFile
from service.storage.progress import Progress
from service.storage.retry import Patience
from service.storage.slices import Extent, cut

# Brings objects into a folder and returns each file's crc32c by name, as `download` does.
Bring = Callable[[ByteRanges, Sequence[ObjectInfo], Path, Progress, Patience], dict[str, str]]


def download(
    source: ByteRanges, objects: Sequence[ObjectInfo], folder: Path, progress: Progress, patience: Patience
) -> dict[str, str]:
    """Bring objects into a folder and return each file's crc32c by name.

    Raises:
        CorruptObject: an object's sum was wrong twice.
        ObjectChanged: an object was overwritten or deleted since it was listed.
        MalformedCheckpoint: an object that is stored with gzip does not unpack.
        StorageFull: the file system has no room left.
        TransferFailed: retries or deadline ran out, or the folder cannot be written.
    """
    sums, fetches = _download_once(source, objects, folder, progress, patience)
    # A wrong sum is rare enough to begin again with; a second one is no accident of the network.
    if wrong := [fetch.info for fetch in fetches if not fetch.is_right]:
        progress.add(-sum(info.size_bytes for info in wrong))
        more_sums, fetches = _download_once(source, wrong, folder, progress, patience)
        sums |= more_sums
    for fetch in fetches:
        fetch.check(source.uri)
    return sums


def _download_once(
    source: ByteRanges, objects: Sequence[ObjectInfo], folder: Path, progress: Progress, patience: Patience
) -> tuple[dict[str, str], list[ObjectFetch]]:
    limits = patience.limits
    fetches = [
        ObjectFetch(
            source,
            info,
            cut(0, [Extent(info.size_bytes, 1)], piece_bytes=limits.piece_bytes, slice_bytes=limits.slice_bytes),
            progress,
            part=PartFile(source.uri, info, folder),
        )
        for info in objects
    ]
    fetch_all([(fetch, index) for fetch in fetches for index in range(len(fetch.slices))], patience)
    return {fetch.info.name: fetch.file_sum for fetch in fetches if fetch.file_sum is not None}, fetches
