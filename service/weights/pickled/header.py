"""The header of a file of pickled weights, in the same form as a safetensors header."""

from collections.abc import Iterable, Mapping

from service.errors import RefusedPickle
from service.storage.objects import Extent, read_range
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget
from service.weights.pickled.archive import MAGIC, Record, read_archive
from service.weights.pickled.legacy import read_legacy
from service.weights.pickled.machine import interpret
from service.weights.pickled.state_dict import storages_of, tensors_of
from service.weights.pickled.values import PickleRefusal, Storage, Tensor
from service.weights.safetensors import Header, TensorEntry


def read_pickled_header(file: OpenFile, budget: RetryBudget) -> Header:
    """Read the descriptions of a file's tensors without reading storages, or importing or calling what the file names.

    Raises:
        RefusedPickle: the file is malformed, truncated, or contains something that no tensor needs.
        ObjectChanged, TransferFailed: see `RangeReader`.
    """
    uri, name = file.source.uri, file.info.name
    try:
        if read_range(file.source, file.info, 0, min(len(MAGIC), file.info.size_bytes), budget) == MAGIC:
            data, places = read_archive(file, budget)
            value, num_bytes = interpret(data)
            if num_bytes != len(data):
                raise PickleRefusal("has bytes after the end of its pickle.")
        else:
            value, places = read_legacy(file, budget)
        entries = {tensor: _entry(name, view, places) for tensor, view in tensors_of(value).items()}
        return Header(file, b"", entries, _extents(storages_of(value), places, file.info.size_bytes))
    except PickleRefusal as refusal:
        raise RefusedPickle(uri, name, str(refusal), refusal.name) from refusal


def _entry(file: str, tensor: Tensor, places: Mapping[str, Record]) -> TensorEntry:
    storage = tensor.storage
    place = places.get(storage.key)
    if place is None or place.num_bytes != storage.num_bytes:
        actual = "no bytes" if place is None else f"{place.num_bytes} bytes"
        raise PickleRefusal(f"has {actual} of storage {storage.key!r:.200}; its pickle says {storage.num_bytes}.")
    begin = place.start + tensor.offset * storage.element_bytes
    end = begin + tensor.num_elements * storage.element_bytes
    return TensorEntry(file.rpartition("/")[2], storage.dtype_name, tensor.shape, begin, end, tensor.strides)


def _extents(storages: Iterable[Storage], places: Mapping[str, Record], size_bytes: int) -> tuple[Extent, ...]:
    """Return where the file may be split: between elements of a storage, and anywhere outside of storages."""
    units: dict[str, str | int] = {}
    element_bytes: dict[str, int] = {}
    for storage in storages:
        if units.setdefault(storage.key, storage.dtype_name) != storage.dtype_name:
            raise PickleRefusal(f"uses storage {storage.key!r:.200} as two types.")
        element_bytes[storage.key] = storage.element_bytes
    if unused := places.keys() - units.keys():
        raise PickleRefusal(f"has a storage {min(unused)!r:.200} that no tensor uses.", min(unused))
    extents, position = [], 0
    for key, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].num_bytes)):
        extents += [Extent(place.start - position, 1), Extent(place.num_bytes, element_bytes[key])]
        position = place.start + place.num_bytes
    return (*extents, Extent(size_bytes - position, 1))
