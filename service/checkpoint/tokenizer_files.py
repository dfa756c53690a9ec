"""A tokenizer's files, brought to this machine without waiting for weights, nor for jax."""

from dataclasses import replace

from service.checkpoint.discover import LocatedCheckpoint
from service.storage.cache.cache import Bucket, CheckpointCache, PulledCheckpoint, private_cache, private_folder
from service.storage.progress import Progress


def pull_tokenizer(located: LocatedCheckpoint, cache: CheckpointCache | None, progress: Progress) -> PulledCheckpoint:
    """Bring the tokenizer's files to this machine, without waiting for the weights; `path` is their folder.

    Files of a bucket that are not in the cache yet are read into a private folder that ends with the process: those
    that belong to the weights' folder of the cache get there with the weights.

    Raises:
        CheckpointError: they did not come whole.
    """
    group = located.tokenizer
    if not isinstance(group.source, Bucket):
        pulled = group.source.pull(group.objects, cache or private_cache(), progress)
        return replace(pulled, path=pulled.path / group.folder)
    if cache is not None and group.source is located.weights.source:
        kept = cache.find(group.source, located.weights.objects)
        if kept is not None:
            return replace(kept, path=kept.path / group.folder)
    folder = private_folder()
    for info in group.objects:
        data = group.source.read(info)
        (folder / info.name.removeprefix(group.folder)).write_bytes(data)
    return PulledCheckpoint(folder, group.objects)
