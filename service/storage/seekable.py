"""A stream of bytes that are read by position, for readers of files that expect one."""

import io
from typing import override


class SeekableReader(io.RawIOBase):
    """A readable, seekable stream; a subclass sets its size and reads at `_position`, which it moves on."""

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
            raise ValueError("a position before the stream's first byte")
        self._position = start + offset
        return self._position
