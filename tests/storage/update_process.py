"""Update an object of a folder until killed, and print each number once it is stored: `FOLDER NAME`."""

import sys
from pathlib import Path

from service.storage.folder_store import FolderStore


def counted(present):
    """One more line than before; the last one is this process's own number."""
    return (present or b"") + b"%s\n" % sys.argv[2].encode()


if __name__ == "__main__":
    store = FolderStore(Path(sys.argv[1]))
    while True:
        stored = store.update("a/count", counted)
        print(stored.count(b"\n"), flush=True)
