"""A seekable stream over positioned reads."""

import io
from typing import override


class SeekableReader(io.RawIOBase):
    """A readable, seekable stream; a subclass sets `size_bytes` and reads at `_position`, which it advances."""

    size_bytes: int
    _position = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}[whence]
        if start + offset < 0:
            raise ValueError("negative seek position")
        self._position = start + offset
        return self._position
