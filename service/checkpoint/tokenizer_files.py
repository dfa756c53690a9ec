"""A tokenizer's files, copied to this machine without waiting for the weights or for jax."""

from dataclasses import replace

from service.checkpoint.discover import LocatedCheckpoint
from service.observability.progress import Progress
from service.storage.cache.cache import CachedSource, CheckpointCache, PulledCheckpoint, private_cache
from service.storage.files import private_folder


def pull_tokenizer(located: LocatedCheckpoint, cache: CheckpointCache | None, progress: Progress) -> PulledCheckpoint:
    """Copy the tokenizer's files to this machine; `path` of the result is their folder.

    Files of a bucket that the cache lacks are read into a private folder that ends with the process; if they belong to
    the weights' entry of the cache, the load of the weights adds them to it.

    Raises:
        CheckpointError: a file is missing or its bytes are wrong.
    """
    files = located.tokenizer
    if not isinstance(files.source, CachedSource):
        pulled = files.source.pull(files.objects, cache or private_cache(), progress)
        return replace(pulled, path=pulled.path / files.folder)
    if cache is not None and files.source is located.weights.source:
        kept = cache.find(files.source, located.weights.objects)
        if kept is not None:
            return replace(kept, path=kept.path / files.folder)
    folder = private_folder()
    for info in files.objects:
        path = folder / info.name.removeprefix(files.folder)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(files.source.read(info))
    return PulledCheckpoint(folder, files.objects)
