"""Tensors that a checkpoint has twice: checksums of their bytes, taken while these arrive in any order."""

import threading
from collections.abc import Iterable, Mapping

import numpy as np

from service.storage import crc32c
from service.weights.headers import TensorCopy, unequal_copies

type Sums = dict[tuple[str, str], int]  # by object and tensor


class CopySums:
    """The checksums of some tensors of one object; writable from several threads."""

    def __init__(self, file: str, copies: Iterable[TensorCopy]) -> None:
        """Choose the tensors of an object that are copies, or have one."""
        self._file, self._lock = file, threading.Lock()
        places = [place for copy in copies for place in ((copy.file, copy.tensor), (copy.copy_file, copy.copy))]
        # Of each tensor: the length and the checksum of each piece, by its first byte.
        self._pieces: dict[str, dict[int, tuple[int, int]]] = {name: {} for of, name in places if of == file}

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._pieces

    def add(self, tensor: str, first: int, data: np.ndarray) -> None:
        """Take the bytes of a tensor from byte `first` on."""
        piece = (len(data), crc32c.extend(0, data))
        with self._lock:
            self._pieces[tensor][first] = piece

    def sums(self) -> Sums:
        """Return the checksum of each tensor, once all of its bytes have come."""
        sums: Sums = {}
        for name, pieces in self._pieces.items():
            sums[self._file, name] = 0
            for _, (length, piece) in sorted(pieces.items()):
                sums[self._file, name] = crc32c.combine(sums[self._file, name], piece, length)
        return sums


def check_copies(uri: str, copies: Iterable[TensorCopy], sums: Mapping[tuple[str, str], int]) -> None:
    """Check that tensors that mean one are equal.

    Raises:
        MalformedCheckpoint: two differ.
    """
    for copy in copies:
        if sums[copy.file, copy.tensor] != sums[copy.copy_file, copy.copy]:
            raise unequal_copies(uri, copy)
