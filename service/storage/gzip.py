"""Objects that are stored with `Content-Encoding: gzip`: the bucket sums the packed bytes, readers want the others.

What unpacks to much more than it weighs is refused, so that a small object cannot fill the machine.
Source: https://cloud.google.com/storage/docs/transcoding
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

from service.errors import MalformedCheckpoint
from service.storage import crc32c
from service.storage.objects import ObjectInfo

CHUNK_BYTES = 1024 * 1024

# JSON packs to a tenth at best, weights hardly at all.
MAX_RATIO = 32
ALLOWANCE_BYTES = 64 * 1024 * 1024


def is_packed(info: ObjectInfo) -> bool:
    """Whether the stored bytes are not the file's."""
    return info.content_encoding.strip().lower() == "gzip"


def decoded(uri: str, info: ObjectInfo, data: bytes) -> bytes:
    """The file's bytes from the stored ones.

    Raises:
        MalformedCheckpoint: the object is no gzip stream, or unpacks to far more than it weighs.
    """
    return b"".join(_unpacked(uri, info, iter([data]))) if is_packed(info) else data


def decode_file(uri: str, info: ObjectInfo, packed: Path, unpacked: Path) -> int:
    """Unpack a stored object into a new file and return the crc32c of what it holds.

    Raises:
        MalformedCheckpoint: the object is no gzip stream, or unpacks to far more than it weighs.
    """
    crc = 0
    with packed.open("rb") as source, unpacked.open("xb") as sink:
        for chunk in _unpacked(uri, info, iter(lambda: source.read(CHUNK_BYTES), b"")):
            crc = crc32c.extend(crc, chunk)
            sink.write(chunk)
    return crc


def _unpacked(uri: str, info: ObjectInfo, chunks: Iterator[bytes]) -> Iterator[bytes]:
    limit_bytes = info.size_bytes * MAX_RATIO + ALLOWANCE_BYTES
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: a gzip header, not zlib's
    try:
        for packed in chunks:
            rest = packed
            while rest:
                chunk = unpacker.decompress(rest, CHUNK_BYTES)
                rest = unpacker.unconsumed_tail
                limit_bytes -= len(chunk)
                if limit_bytes < 0:
                    raise MalformedCheckpoint(uri, info.name, "unpacks to far more than it weighs, so it was refused.")
                yield chunk
        yield unpacker.flush()
    except zlib.error as error:
        raise MalformedCheckpoint(uri, info.name, "is stored as gzip and is no gzip stream.") from error
    if not unpacker.eof or unpacker.unused_data:
        raise MalformedCheckpoint(uri, info.name, "is stored as gzip and is not exactly one gzip stream.")
