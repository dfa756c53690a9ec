"""Objects stored with `Content-Encoding: gzip`: checksums cover the packed bytes, files hold the unpacked ones.

An object that unpacks to many times its size is refused: it could be a decompression bomb.
Source: https://cloud.google.com/storage/docs/transcoding
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

from service.errors import MalformedCheckpoint
from service.storage import crc32c
from service.storage.objects import ObjectInfo

CHUNK_BYTES = 1024 * 1024

# JSON compresses to a tenth at best, weights hardly at all.
MAX_RATIO = 32
ALLOWANCE_BYTES = 64 * 1024 * 1024


def unpacked(uri: str, info: ObjectInfo, data: bytes) -> bytes:
    """Unpack the stored bytes if necessary.

    Raises:
        MalformedCheckpoint: the object is not a gzip stream, or unpacks to many times its size.
    """
    return b"".join(_chunks(uri, info, iter([data]))) if info.is_gzipped else data


def unpack_file(uri: str, info: ObjectInfo, packed: Path, target: Path) -> int:
    """Unpack a stored object into a new file and return the crc32c of that file.

    Raises:
        MalformedCheckpoint: the object is not a gzip stream, or unpacks to many times its size.
    """
    crc = 0
    with packed.open("rb") as source, target.open("xb") as sink:
        for chunk in _chunks(uri, info, iter(lambda: source.read(CHUNK_BYTES), b"")):
            crc = crc32c.extend(crc, chunk)
            sink.write(chunk)
    return crc


def _chunks(uri: str, info: ObjectInfo, chunks: Iterator[bytes]) -> Iterator[bytes]:
    limit_bytes = info.size_bytes * MAX_RATIO + ALLOWANCE_BYTES
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: expect a gzip header
    try:
        for packed in chunks:
            rest = packed
            while rest:
                chunk = unpacker.decompress(rest, CHUNK_BYTES)
                rest = unpacker.unconsumed_tail
                limit_bytes -= len(chunk)
                if limit_bytes < 0:
                    raise MalformedCheckpoint(
                        uri, info.name, "unpacks to many times its stored size, so it was refused."
                    )
                yield chunk
        yield unpacker.flush()
    except zlib.error as error:
        raise MalformedCheckpoint(uri, info.name, "is stored as gzip and is not a gzip stream.") from error
    if not unpacker.eof or unpacker.unused_data:
        raise MalformedCheckpoint(uri, info.name, "is stored as gzip and is not exactly one gzip stream.")
