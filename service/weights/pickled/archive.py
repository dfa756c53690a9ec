"""The zip archive that `torch.save` has written since PyTorch 1.6: one pickle, and a record for each storage.

Records are stored uncompressed, back to back.

Source: https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.h (records, their alignment),
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (local headers, data descriptors)
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from zipfile import BadZipFile, ZipFile, ZipInfo

from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget
from service.weights.pickled.machine import MAX_PICKLE_BYTES
from service.weights.pickled.pieces import PieceFile, read_pieces
from service.weights.pickled.values import PickleRefusal

MAGIC = b"PK\x03\x04"
PICKLE, BYTE_ORDER, DATA = "data.pkl", "byteorder", "data/"
# Records that describe the archive rather than a tensor.
DESCRIPTIONS = frozenset({"version", ".format_version", ".storage_alignment", ".data/serialization_id"})
MAX_RECORDS = 100_000
LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
HAS_DESCRIPTOR, ENCRYPTED = 0x8, 0x1  # bits of a record's flags
DESCRIPTOR_BYTES = (16, 24)  # of the data descriptor after a record with that flag; 24 with 64-bit sizes


@dataclass(frozen=True)
class Record:
    """A file of the archive."""

    start: int  # offset in the archive
    num_bytes: int


def read_archive(file: OpenFile, budget: RetryBudget) -> tuple[bytes, Mapping[str, Record]]:
    """Return the pickle of an archive, and the location of each storage by key.

    Raises:
        PickleRefusal: the archive is malformed, truncated, or contains something unexpected.
    """
    try:
        with ZipFile(BufferedReader(PieceFile(file, budget))) as archive:
            records = _records(archive)
            if archive.getinfo(records[PICKLE].filename).file_size > MAX_PICKLE_BYTES:
                raise PickleRefusal(f"has a pickle of more than {MAX_PICKLE_BYTES} bytes.")
            data = archive.read(records[PICKLE])  # also verifies its CRC
            if BYTE_ORDER in records and archive.read(records[BYTE_ORDER]) != b"little":
                raise PickleRefusal("has numbers in big-endian order.", BYTE_ORDER)
            places = _places(file, list(records.values()), archive.start_dir, budget)
    except (BadZipFile, KeyError, ValueError, NotImplementedError, RuntimeError, EOFError, struct.error) as error:
        raise PickleRefusal(f"is a malformed or truncated zip archive: {str(error)[:100]}.") from error
    return data, {
        name.removeprefix(DATA): places[info.header_offset] for name, info in records.items() if name.startswith(DATA)
    }


def _records(archive: ZipFile) -> dict[str, ZipInfo]:
    """Return the archive's files by name, without their common folder."""
    infos = archive.infolist()
    if len(infos) > MAX_RECORDS:
        raise PickleRefusal(f"has more than {MAX_RECORDS} records.")
    folder = next((info.filename.partition("/")[0] for info in infos), "") + "/"
    records: dict[str, ZipInfo] = {}
    for info in infos:
        name = info.filename.removeprefix(folder)
        is_known = name in (PICKLE, BYTE_ORDER) or name in DESCRIPTIONS or name.startswith(DATA)
        if not is_known or not info.filename.startswith(folder):
            raise PickleRefusal(f"has a record {info.filename!r:.200}, which no file of tensors needs.", info.filename)
        if name in records:
            raise PickleRefusal(f"has two records {info.filename!r:.200}.", info.filename)
        if info.compress_type or info.flag_bits & ENCRYPTED or info.compress_size != info.file_size:
            raise PickleRefusal(f"has a record {info.filename!r:.200} that is compressed or encrypted.", info.filename)
        records[name] = info
    if PICKLE not in records:
        raise PickleRefusal(f"is a zip archive without {PICKLE}.")
    return records


def _places(file: OpenFile, infos: Sequence[ZipInfo], directory: int, budget: RetryBudget) -> dict[int, Record]:
    """Return the location of each record by the offset of its header, checking that records are contiguous."""
    infos = sorted(infos, key=lambda info: info.header_offset)
    headers = read_pieces(file, ((info.header_offset, LOCAL_HEADER.size) for info in infos), budget)
    places, position = {}, 0
    ends = [*(info.header_offset for info in infos[1:]), directory]
    for info, end in zip(infos, ends, strict=True):
        magic, _, flags, *_, name_bytes, extra_bytes = LOCAL_HEADER.unpack(headers[info.header_offset])
        start = info.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
        after = end - start - info.file_size
        if magic != MAGIC or info.header_offset != position:
            raise PickleRefusal(f"has no record {info.filename!r:.200} where its directory says.", info.filename)
        if after not in (DESCRIPTOR_BYTES if flags & HAS_DESCRIPTOR else (0,)):
            raise PickleRefusal(f"has a gap or an overlap at record {info.filename!r:.200}.", info.filename)
        places[info.header_offset], position = Record(start, info.file_size), end
    return places
