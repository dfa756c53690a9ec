"""Objects under names of the service's own: written, replaced and deleted, in a folder or below a bucket's prefix.

An object is complete or invisible. A claim lets one process at a time work on something that several can see.
"""

from typing import BinaryIO, Protocol, runtime_checkable

from service.errors import SettingsError
from service.storage.folder_store import FolderStore
from service.storage.location import GcsLocation, LocalLocation, parse_location


@runtime_checkable
class Claim(Protocol):
    """The right to work on something; it ends with the process, for a bucket some minutes later."""

    def renew(self) -> bool:
        """Keep the claim; return whether it is still this process's."""
        ...

    def release(self) -> None:
        """End the claim."""
        ...


@runtime_checkable
class ObjectStore(Protocol):
    """A place for objects. Every method blocks, and raises OSError or CheckpointError if the place fails."""

    uri: str

    def list(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of all objects below a folder, or of all, by name, in the order of names."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a small object; None if it is not there."""
        ...

    def open(self, name: str) -> BinaryIO | None:
        """Open a copy or the object itself for reading; None if it is not there."""
        ...

    def write(self, name: str, content: bytes | BinaryIO) -> None:
        """Write or replace an object."""
        ...

    def copy(self, name: str, target: str) -> bool:
        """Copy an object; return whether it was there."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object; does nothing if it is not there."""
        ...

    def claim(self, name: str) -> Claim | None:
        """Claim something under a name; return None while another process, or this one, has it."""
        ...


def open_store(uri: str, variable: str, *, emulator_host: str | None) -> ObjectStore:
    """Name a store; nothing is read yet.

    Args:
        uri: `gs://bucket/prefix` or a path.
        variable: the setting that the address comes from, for the message.
        emulator_host: STORAGE_EMULATOR_HOST.

    Raises:
        SettingsError: the address is malformed, or of a kind that cannot be written.
    """
    location = parse_location(uri, variable)
    if isinstance(location, LocalLocation):
        return FolderStore(location.path)
    if isinstance(location, GcsLocation):
        from service.storage.gcs.store import BucketStore

        return BucketStore(location, emulator_host=emulator_host)
    raise SettingsError(variable, f"{uri!r} cannot be written to. Write gs://bucket/prefix or a path.")
