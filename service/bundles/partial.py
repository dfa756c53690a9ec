"""The executables that a start has compiled so far, saved one by one so that an interrupted start loses none.

They lie where their bundle will be, each beside its entry of the future manifest. Executables are code, so a folder
that other users can write to is refused, as for a complete bundle.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from service.bundles.bundle import FILE_NAME, MANIFEST_NAME, BundledFile, check_owner, describe_file
from service.bundles.signature import FIELD, UNSIGNED, Signer
from service.storage.folder_store import FolderStore

ENTRY_SUFFIX = ".executable.json"


class PartialBundle:
    """The executables of one key while their bundle is incomplete; each entry is signed by itself."""

    def __init__(self, folder: Path, key: str, signer: Signer = UNSIGNED) -> None:
        self._folder, self._key, self._signer = folder, key, signer
        self._store = FolderStore(folder)

    def read(self) -> Mapping[str, tuple[BundledFile, bytes]]:
        """Return entry and bytes of each valid executable by name, skipping torn, modified or unsigned ones.

        Raises:
            BundleRefused: other users can write to the folder, so its code is not trusted.
            OSError: the folder cannot be read.
        """
        try:
            check_owner(str(self._folder / self._key), self._folder, self._folder / self._key)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        executables = {}
        for path in self._store.list(self._key):
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, OSError):
                if path.endswith(ENTRY_SUFFIX):
                    name, file = self._entry(json.loads(self._store.read(path) or b""))
                    data = self._store.read(f"{self._key}/{file.file}")
                    if data is not None and describe_file(name, data, file.compile_seconds) == file:
                        executables[name] = (file, data)
        return executables

    def add(self, name: str, data: bytes, compile_seconds: float) -> None:
        """Save an executable, unless the bundle is complete by now.

        Raises:
            OSError: the folder cannot be written, or is full.
        """
        if (self._folder / self._key / MANIFEST_NAME).exists():
            return
        file = describe_file(name, data, compile_seconds)
        entry = self._signer.signed({"key": self._key, "name": name, **asdict(file)})
        self._store.write(f"{self._key}/{file.file}", data)
        self._store.write(f"{self._key}/{file.file}.json", json.dumps(entry).encode())

    def _entry(self, content: dict[str, object]) -> tuple[str, BundledFile]:
        if not self._signer.verifies(content) or content.pop("key") != self._key:
            raise ValueError("the entry was not written for this bundle")
        content.pop(FIELD, None)
        name, file = str(content.pop("name")), BundledFile(**content)  # pyright: ignore[reportArgumentType]
        if not FILE_NAME.fullmatch(file.file):
            raise ValueError("the entry names a file outside of the bundle")
        return name, file
