"""A checkpoint on the Hugging Face Hub, downloaded by huggingface_hub into its own layout below our cache.

Listing the repository resolves the revision to a commit, and every file is read at that commit. huggingface_hub checks
the size of each file; the SHA-256 that the Hub gives for large files is verified here after the download. Without a
network, the files downloaded by an earlier start are served.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, override

from service.errors import CheckpointNotFound, CorruptObject, SettingsError, TransferFailed
from service.observability.progress import Progress, show_progress
from service.storage.cache.cache import CheckpointCache, PulledCheckpoint, private_cache
from service.storage.files import atomic_write
from service.storage.hub_errors import hub_errors
from service.storage.local import LocalSource
from service.storage.location import HubLocation, LocalLocation
from service.storage.objects import ObjectInfo, RangeReader, RangeSource, check_name, check_names_together
from service.storage.open_files import OpenFiles, open_pulled
from service.storage.retry import RetryBudget, TransferLimits

logger = logging.getLogger(__name__)

PARTIAL = 206  # the status of an answer with a range
NUM_WORKERS = 4  # concurrent files; huggingface_hub also parallelizes each download


class HubSource:
    """The files of one model repository, or of a folder of it, at one commit."""

    def __init__(self, location: HubLocation, *, cache_root: Path, limits: TransferLimits) -> None:
        """Find the Hub's client.

        Raises:
            SettingsError: the client is not installed.
        """
        self.uri = location.uri
        self._repo, self._revision = location.repo, location.revision
        self._prefix = f"{location.folder}/" if location.folder else ""  # of the names in the repository
        self._folder = cache_root.expanduser().absolute() / "hub"
        self._limits = limits
        self._commit: str | None = None
        self._sha256: dict[str, str] = {}  # by name, in hexadecimal
        self._offline: LocalSource | None = None  # files of an earlier start, if the Hub is unreachable
        try:
            import huggingface_hub
        except ImportError as error:
            raise SettingsError(
                "MODEL_URI",
                f"{self.uri} needs the package huggingface-hub, which Levserve depends on. Install Levserve anew.",
            ) from error
        self._hub = huggingface_hub

    def close(self) -> None:
        """Do nothing: huggingface_hub owns its connections."""

    def list(self) -> tuple[ObjectInfo, ...]:
        """List the files, pinned to the current commit of the revision.

        Raises:
            CheckpointNotFound: there is no such repository, revision or folder, or it is empty.
            AccessDenied: the repository is gated or the token is refused.
            TransferFailed: the Hub is unreachable and no earlier start downloaded this repository.
        """
        try:
            with hub_errors(self.uri, self._repo, self._revision, "listing"):
                info = self._hub.HfApi().model_info(
                    self._repo, revision=self._revision, files_metadata=True, timeout=self._limits.read_timeout_s
                )
        except TransferFailed as error:
            return self._list_offline(error)
        self._commit = info.sha
        files = {
            file.rfilename.removeprefix(self._prefix): file
            for file in info.siblings or ()
            if file.rfilename.startswith(self._prefix)
        }
        self._sha256 = {name: file.lfs.sha256 for name, file in files.items() if file.lfs is not None}
        objects = tuple(ObjectInfo(name, file.size or 0) for name, file in files.items())
        for item in objects:
            check_name(self.uri, item.name)
        if not objects:
            what = f"the repository has no folder {self._prefix!r}." if self._prefix else "the repository is empty."
            raise CheckpointNotFound(self.uri, what)
        return objects

    def read(self, info: ObjectInfo) -> bytes:
        """Read a file, which huggingface_hub also caches.

        Raises:
            AccessDenied, CheckpointNotFound, TransferFailed: as in `list`.
        """
        if self._offline is not None:
            return self._offline.read(info)
        return self._fetch(info, Progress(), RetryBudget(self._limits)).read_bytes()

    def is_on_this_machine(self, objects: Sequence[ObjectInfo], cache: CheckpointCache | None) -> bool:
        """Return whether an earlier start downloaded all of these files at the listed commit."""
        place = {"revision": self._commit or self._revision, "cache_dir": self._folder}
        paths = (self._hub.try_to_load_from_cache(self._repo, self._prefix + info.name, **place) for info in objects)
        return self._offline is not None or all(isinstance(path, str) for path in paths)

    def pull(
        self,
        objects: Sequence[ObjectInfo],
        cache: CheckpointCache,
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> PulledCheckpoint:
        """Download files into the Hub's layout below the cache; MAX_CACHED_CHECKPOINTS does not count them.

        Raises:
            HostileName: two names cannot be files of one folder.
            AccessDenied, CheckpointNotFound, TransferFailed: as in `list`.
        """
        if self._offline is not None:
            return self._offline.pull(objects, cache, progress)
        check_names_together(self.uri, objects)
        budget = RetryBudget(self._limits, cancelled)
        progress.expect(sum(info.size_bytes for info in objects))
        paths: dict[str, Path] = {}
        with show_progress(progress, self.uri), ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="pull") as pool:
            futures = {pool.submit(self._fetch, info, progress, budget): info for info in objects}
            try:
                for future in as_completed(futures):
                    paths[futures[future].name] = future.result()
            except BaseException:
                budget.cancel()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        self._remember_commit()
        name, path = next(iter(paths.items()))
        return PulledCheckpoint(path.parents[name.count("/")], tuple(objects))

    def open_files(
        self,
        objects: Sequence[ObjectInfo],
        chosen: Sequence[ObjectInfo],
        *,
        cache: CheckpointCache | None,
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> AbstractContextManager[OpenFiles]:
        """Pull files, then open them."""
        pulled = self.pull(objects, cache or private_cache(), progress, cancelled)
        # The pull has already counted the bytes.
        return open_pulled(self.uri, pulled, chosen, Progress() if self._offline is None else progress, cancelled)

    def open_ranges(self) -> AbstractContextManager[RangeSource]:
        """Open files that an earlier start downloaded, or read ranges of them over HTTP."""
        return nullcontext(self) if self._offline is None else self._offline.open_ranges()

    @contextmanager
    def open_range(self, info: ObjectInfo, start: int, num_bytes: int, budget: RetryBudget) -> Iterator[RangeReader]:
        """Read a range at once, from the cache if the file is there.

        Raises:
            AccessDenied, CheckpointNotFound, TransferFailed: as in `list`.
        """
        place = {"revision": self._commit or self._revision, "cache_dir": self._folder}
        path = self._hub.try_to_load_from_cache(self._repo, self._prefix + info.name, **place)
        if isinstance(path, str):
            with Path(path).open("rb") as file:
                file.seek(start)
                yield _Bytes(file.read(num_bytes))
            return
        budget.check(self.uri, info.name)
        url = self._hub.hf_hub_url(self._repo, self._prefix + info.name, revision=place["revision"])
        headers = {**self._hub.utils.build_hf_headers(), "Range": f"bytes={start}-{start + num_bytes - 1}"}
        with hub_errors(self.uri, self._repo, self._revision, info.name):
            timeout_s = self._limits.read_timeout_s
            session = self._hub.utils.get_session()
            with session.stream("GET", url, headers=headers, follow_redirects=True, timeout=timeout_s) as answer:
                self._hub.utils.hf_raise_for_status(answer)
                # An answer without a range is the whole file.
                data = answer.read() if answer.status_code == PARTIAL else b""
        if len(data) != num_bytes:
            raise TransferFailed(self.uri, info.name, f"{len(data)} of {num_bytes} bytes came.")
        yield _Bytes(data)

    def _fetch(self, info: ObjectInfo, progress: Progress, budget: RetryBudget) -> Path:
        share = _Share(info.size_bytes, progress)

        def count(num_bytes: int) -> None:
            budget.check(self.uri, info.name)
            share.add(num_bytes)

        place = {"revision": self._commit or self._revision, "cache_dir": self._folder}
        is_cached = isinstance(self._hub.try_to_load_from_cache(self._repo, self._prefix + info.name, **place), str)
        expected, actual = self._sha256.get(info.name), None
        for _ in range(2):
            with hub_errors(self.uri, self._repo, self._revision, info.name):
                name = self._prefix + info.name
                path = Path(self._hub.hf_hub_download(self._repo, name, tqdm_class=_counting_bar(count), **place))
            if is_cached or expected is None or (actual := _sha256(path)) == expected:
                share.fill()
                return path
            path.resolve().unlink()
            path.unlink(missing_ok=True)
        raise CorruptObject(
            self.uri, info.name, expected=str(expected), actual=str(actual), checksum="sha256", origin="the Hub"
        )

    def _remember_commit(self) -> None:
        # A download by commit records no ref for the revision, which an offline start looks up.
        # Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache (refs)
        revision = self._revision or "main"
        if self._commit is None or revision == self._commit:
            return
        ref = self._folder / f"models--{self._repo.replace('/', '--')}" / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(ref, self._commit.encode())

    def _list_offline(self, error: TransferFailed) -> tuple[ObjectInfo, ...]:
        try:
            folder = self._hub.snapshot_download(
                self._repo, revision=self._revision, cache_dir=self._folder, local_files_only=True
            )
        except OSError:
            raise error from None
        logger.warning("the Hub is unreachable; serving the files of an earlier download", extra={"folder": folder})
        self._offline = LocalSource(LocalLocation(Path(folder, self._prefix)))
        return self._offline.list()


class _Bytes:
    """A range that was read whole."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def readinto(self, buffer: memoryview) -> None:
        buffer[:] = self._data[self._position : self._position + len(buffer)]
        self._position += len(buffer)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Share:
    # One file's share of the progress: at most its size while bytes arrive, exactly its size at the end.
    def __init__(self, size_bytes: int, progress: Progress) -> None:
        self._left_bytes = size_bytes
        self._progress = progress
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            num_bytes = min(num_bytes, self._left_bytes)
            self._left_bytes -= num_bytes
        self._progress.add(num_bytes)

    def fill(self) -> None:
        self.add(self._left_bytes)


def _counting_bar(add: Callable[[int], None]) -> Any:
    # huggingface_hub reports progress only to a tqdm class; this one counts and shows nothing.
    from huggingface_hub.utils import tqdm

    class CountingBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

        @override
        def update(self, n: float | None = 1) -> None:
            add(int(n or 0))

    return CountingBar
