"""A read-write object store in a folder or below a bucket's prefix.

Objects become visible only when complete. A claim gives one process at a time the right to work on something. What
several processes change they change with `update`, so that none undoes what another has done.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from service.errors import SettingsError
from service.storage.folder_store import FolderStore
from service.storage.location import GcsLocation, LocalLocation, parse_location
from service.storage.retry import TransferLimits


@runtime_checkable
class Claim(Protocol):
    """An exclusive right to work on something; it ends with the process, in a bucket some minutes later.

    No clock of this machine decides when: the kernel does, or the bucket's own clock.
    """

    def renew(self) -> bool:
        """Extend the claim; return whether this process still holds it."""
        ...

    def release(self) -> None: ...


@runtime_checkable
class ObjectStore(Protocol):
    """A store of objects. Every method blocks, and raises OSError or CheckpointError if the store fails."""

    uri: str

    def list(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of all objects below a folder, sorted by name; "" lists the whole store."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a small object, or None if it does not exist."""
        ...

    def open(self, name: str) -> BinaryIO | None:
        """Open an object, or a copy of it, for reading; return None if it does not exist."""
        ...

    def write(self, name: str, content: bytes | Path | BinaryIO, *, replaces: bool = True) -> bool:
        """Write an object from bytes, an open file, or a file that is no longer modified.

        Returns False if the object exists and `replaces` is false; of several such writers, one gets True.
        """
        ...

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace a small object by what `change` makes of it; no other update comes in between.

        Args:
            name: the object's name.
            change: gets the object, None if it does not exist, and returns the new one, None to leave it as it is.
                It is called again if another process was first, and must leave what it has made itself.

        Returns the object as it is afterwards.
        """
        ...

    def copy(self, name: str, target: str) -> bool:
        """Copy an object; return whether it existed."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        ...

    def delete_folder(self, folder: str) -> None:
        """Delete all objects below a folder."""
        ...

    def concatenate(self, names: Sequence[str], target: str) -> bool:
        """Write a new object from the contents of at least one other, in order; return False if it exists.

        Raises FileNotFoundError or CheckpointError if one of them does not exist.
        """
        ...

    def claim(self, name: str, owner: str | None = None) -> Claim | None:
        """Claim a name; return None while this or another process holds it.

        Args:
            name: what is claimed.
            owner: who claims it, so that a process that takes the place of a killed one need not wait for the end of
                its claim in a bucket; None for this process alone.
        """
        ...

    def sweep(self) -> None:
        """Delete what writers have left that were killed long ago; nothing that a living one still writes."""
        ...

    def close(self) -> None:
        """Close all connections; the store cannot be used afterwards."""
        ...


def open_store(
    uri: str, variable: str, *, emulator_host: str | None, limits: TransferLimits | None = None
) -> ObjectStore:
    """Name a store; nothing is read yet.

    Args:
        uri: `gs://bucket/prefix` or a path.
        variable: the setting that the address comes from, for the error message.
        emulator_host: STORAGE_EMULATOR_HOST.
        limits: limits on reads from a bucket; if omitted, those of requests, which wait for no outage.

    Raises:
        SettingsError: the address is malformed or cannot be written to.
    """
    location = parse_location(uri, variable)
    if isinstance(location, LocalLocation):
        return FolderStore(location.path)
    if isinstance(location, GcsLocation):
        from service.storage.gcs.store import BucketStore

        return BucketStore(location, emulator_host=emulator_host, limits=limits)
    raise SettingsError(variable, f"{uri!r} cannot be written to. Write gs://bucket/prefix or a path.")
