"""Executables that a start has compiled so far, kept one by one, so that a start that is stopped loses none.

FOLDER/
  .3f2a….kept/            those of the bundle with this key, until the bundle is complete
    index.jsonl           a line for each, appended after its file is on the disk
    prefill-…-8c1d.executable

An executable is code, so a folder that other users can write to is refused, as for a complete bundle.
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
KEPT_SUFFIX = ".kept"


class KeptExecutables:
    """The executables of one key that were compiled before their bundle was complete."""

    def __init__(self, folder: Path, key: str, signer: Signer = UNSIGNED) -> None:
        """Name a folder of bundles and a key; nothing is read or written yet. Each entry has a signature of its own."""
        self._key = key
        self._signer = signer
        self._folder = folder / f".{key}{KEPT_SUFFIX}"
        self._lock = threading.Lock()

    def read(self) -> Mapping[str, tuple[BundledFile, bytes]]:
        """Return the entry and the bytes of each by its name; what is torn, changed or not signed is left out.

        Raises:
            BundleRefused: other users can write to the folder, so its code is not trusted.
            OSError: the folder cannot be read.
        """
        try:
            check_owner(str(self._folder), self._folder.parent, self._folder)
            lines = (self._folder / INDEX_NAME).read_bytes().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        kept = {}
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
                        kept[name] = (file, data)
        return kept

    def add(self, name: str, data: bytes, compile_seconds: float) -> None:
        """Keep one more executable.

        Raises:
            OSError: the folder cannot be written, or is full.
        """
        file = describe_file(name, data, compile_seconds)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(self._folder / file.file, data)
        # The line break comes first as well, because a start that was killed may have left half a line.
        line = "\n" + json.dumps(self._signer.signed({"key": self._key, "name": name, **asdict(file)})) + "\n"
        with self._lock, (self._folder / INDEX_NAME).open("ab", buffering=0) as index:
            index.write(line.encode())

    def discard(self) -> None:
        """Remove all of them, because their bundle is complete."""
        shutil.rmtree(self._folder, ignore_errors=True)
