"""The format of `torch.save` before PyTorch 1.6: five pickles, followed by the storages.

Source: https://github.com/pytorch/pytorch/blob/main/torch/serialization.py (`_legacy_save`)
"""

import struct
from collections.abc import Mapping

from service.storage.objects import read_range
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget
from service.weights.pickled.archive import Record
from service.weights.pickled.machine import MAX_PICKLE_BYTES, interpret
from service.weights.pickled.pieces import read_pieces
from service.weights.pickled.state_dict import storages_of
from service.weights.pickled.values import Group, PickleRefusal, Storage, Value

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
NUM_PICKLES = 5  # magic number, protocol, machine, tensors, keys of their storages
FIRST_READ_BYTES = 256 * 1024
COUNT = struct.Struct("<q")  # the number of elements that precedes each storage


def read_legacy(file: OpenFile, budget: RetryBudget) -> tuple[Value, dict[str, Record]]:
    """Return the value of a file, and the location of each storage by key.

    Raises:
        PickleRefusal: the file is malformed, truncated, or contains something unexpected.
    """
    (magic, protocol, machine, state, keys), position = _read_pickles(file, budget)
    if magic != MAGIC_NUMBER or protocol != PROTOCOL:
        raise PickleRefusal("is not a PyTorch file: it does not start with PyTorch's magic number and protocol.")
    if not isinstance(machine, Group) or not isinstance(machine.values, dict):
        raise PickleRefusal("does not describe the machine that wrote it.")
    if machine.values.get("little_endian") is not True:
        raise PickleRefusal("has numbers in big-endian order.", "little_endian")
    storages = {storage.key: storage for storage in storages_of(state)}
    return state, _places(file, storages, keys, position, budget)


def _read_pickles(file: OpenFile, budget: RetryBudget) -> tuple[list[Value], int]:
    """Return the values of the pickles, and the offset after the last."""
    size, data = file.info.size_bytes, b""
    while True:
        end = min(size, max(FIRST_READ_BYTES, 4 * len(data)))
        data += read_range(file.source, file.info, len(data), end - len(data), budget)
        try:
            values, position = [], 0
            for _ in range(NUM_PICKLES):
                value, num_bytes = interpret(data[position:])
                values.append(value)
                position += num_bytes
        except PickleRefusal as refusal:
            if not refusal.is_cut or len(data) == size or len(data) > MAX_PICKLE_BYTES:
                raise
        else:
            return values, position


def _places(
    file: OpenFile, storages: Mapping[str, Storage], keys: Value, position: int, budget: RetryBudget
) -> dict[str, Record]:
    """Locate the storages, which follow in the order of the keys, each after its number of elements."""
    listed = keys.values if isinstance(keys, Group) and isinstance(keys.values, list) else []
    if sorted(map(str, listed)) != sorted(storages):
        raise PickleRefusal("lists storages that do not match its tensors.")
    places = {}
    for key in map(str, listed):
        places[key] = Record(position + COUNT.size, storages[key].num_bytes)
        position += COUNT.size + storages[key].num_bytes
    if position != file.info.size_bytes:
        raise PickleRefusal(
            f"describes {position} bytes; the file has {file.info.size_bytes}. It is truncated or invalid."
        )
    counts = read_pieces(file, ((place.start - COUNT.size, COUNT.size) for place in places.values()), budget)
    for key, place in places.items():
        if counts[place.start - COUNT.size] != COUNT.pack(storages[key].num_elements):
            raise PickleRefusal(f"has a different number of elements in storage {key!r:.200} than its pickle says.")
    return places
