"""The executables that a start has compiled so far, saved one by one so that an interrupted start loses none.

FOLDER/
  .3f2a….kept/            the executables for the bundle with this key, until it is complete
    index.jsonl           one line per executable, appended after its file is on disk
    prefill-…-8c1d.executable

Executables are code, so a folder that other users can write to is refused, as for a complete bundle.
"""

import contextlib
import json
import shutil
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from service.bundles.bundle import FILE_NAME, BundledFile, check_owner, describe_file
from service.bundles.signature import FIELD, UNSIGNED, Signer
from service.storage.files import atomic_write

INDEX_NAME = "index.jsonl"
PARTIAL_SUFFIX = ".kept"


class PartialBundle:
    """The executables of one key while their bundle is incomplete; each entry is signed by itself."""

    def __init__(self, folder: Path, key: str, signer: Signer = UNSIGNED) -> None:
        self._key = key
        self._signer = signer
        self._folder = folder / f".{key}{PARTIAL_SUFFIX}"
        self._lock = threading.Lock()

    def read(self) -> Mapping[str, tuple[BundledFile, bytes]]:
        """Return entry and bytes of each valid executable by name, skipping torn, modified or unsigned ones.

        Raises:
            BundleRefused: other users can write to the folder, so its code is not trusted.
            OSError: the folder cannot be read.
        """
        try:
            check_owner(str(self._folder), self._folder.parent, self._folder)
            lines = (self._folder / INDEX_NAME).read_bytes().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        executables = {}
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, OSError):
                entry = json.loads(line)
                if not self._signer.verifies(entry) or entry.pop("key", self._key) != self._key:
                    continue
                entry.pop(FIELD, None)
                name, file = str(entry.pop("name")), BundledFile(**entry)
                if FILE_NAME.fullmatch(file.file):
                    data = (self._folder / file.file).read_bytes()
                    if describe_file(name, data, file.compile_seconds) == file:
                        executables[name] = (file, data)
        return executables

    def add(self, name: str, data: bytes, compile_seconds: float) -> None:
        """Save an executable.

        Raises:
            OSError: the folder cannot be written, or is full.
        """
        file = describe_file(name, data, compile_seconds)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(self._folder / file.file, data)
        # The line also starts with a line break, because a killed start may have left half a line.
        line = "\n" + json.dumps(self._signer.signed({"key": self._key, "name": name, **asdict(file)})) + "\n"
        with self._lock, (self._folder / INDEX_NAME).open("ab", buffering=0) as index:
            index.write(line.encode())

    def discard(self) -> None:
        """Remove all executables once their bundle is complete."""
        shutil.rmtree(self._folder, ignore_errors=True)
