"""Locks between processes, on files that the kernel frees when their holder dies.

`flock` and not a file's mere existence: a process that is killed leaves no lock behind.
"""

import errno
import fcntl
import logging
import os
import time
from pathlib import Path

from service.storage.retry import Patience

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.1
LOG_INTERVAL_S = 10.0

# What a folder answers that can hold no lock: it is read-only, or its file system (gcsfuse, some NFS) has none.
CANNOT_LOCK = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS})


class FileLock:
    """A held lock; it ends with `release`, with the `with` block or with the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Free the lock; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def try_lock(path: Path, *, is_shared: bool = False) -> FileLock | None:
    """Lock a file, which is made if need be; None while another process holds it.

    Raises:
        OSError: the folder can hold no lock; `CANNOT_LOCK` lists the usual numbers.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        # An evicting process may have deleted the file between the two calls; such a lock keeps nobody out.
        if _is_at(path, descriptor):
            return FileLock(descriptor)
        os.close(descriptor)


def wait_for_lock(path: Path, patience: Patience, uri: str) -> FileLock:
    """Lock a file, waiting for the process that holds it.

    Raises:
        TransferFailed: the patience ended first.
        OSError: the folder can hold no lock.
    """
    waiting_since = logged_at = time.monotonic()
    while (lock := try_lock(path)) is None:
        patience.check(uri, "waiting for another process that pulls the same checkpoint")
        if time.monotonic() - logged_at >= LOG_INTERVAL_S:
            logged_at = time.monotonic()
            logger.info("another process pulls %s", uri, extra={"waited_s": round(logged_at - waiting_since)})
        patience.sleep(POLL_INTERVAL_S)
    return lock


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
