"""A stream that is read by position: it begins at the first byte, and is moved as files are."""

import io

import pytest

from service.storage.seekable import SeekableReader

CONTENT = b"0123456789"


class Reader(SeekableReader):
    size_bytes = len(CONTENT)

    def readinto(self, buffer):
        part = CONTENT[self._position : self._position + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)


def test_it_is_read_from_the_first_byte_to_the_last():
    assert (Reader().readable(), Reader().seekable(), Reader().writable()) == (True, True, False)
    assert Reader().read() == CONTENT
    assert Reader().tell() == 0


def test_it_is_moved_from_its_begin_its_position_or_its_end():
    reader = Reader()
    assert reader.seek(2) == 2
    assert (reader.read(3), reader.tell()) == (b"234", 5)
    assert reader.seek(-1, io.SEEK_CUR) == 4
    assert reader.read(1) == b"4"
    assert reader.seek(-2, io.SEEK_END) == 8
    assert reader.read() == b"89"
    assert reader.seek(5, io.SEEK_END) == 15
    assert reader.read() == b""


def test_it_is_not_moved_in_front_of_its_first_byte():
    reader = Reader()
    assert reader.seek(-10, io.SEEK_END) == 0
    for offset, whence in ((-1, io.SEEK_SET), (-1, io.SEEK_CUR), (-11, io.SEEK_END)):
        with pytest.raises(ValueError, match="negative seek position"):
            reader.seek(offset, whence)
    assert reader.tell() == 0
